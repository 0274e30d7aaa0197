package httpapi

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"

	"example.com/mq/api"
	"github.com/valyala/fasthttp"
)

// tokens holds the sums of the configured tokens. The sums have one length, so comparing them tells nothing
// about the tokens, not even how long they are.
type tokens struct {
	client, admin, peer, raft [sha256.Size]byte
	hasClient, hasAdmin       bool
}

func newTokens(cfg *Config) tokens {
	client, admin := cfg.ClientToken, cfg.AdminToken
	t := tokens{
		client: sha256.Sum256([]byte(client)), hasClient: client != "",
		admin: sha256.Sum256([]byte(admin)), hasAdmin: admin != "",
	}
	if cfg.Replication != nil {
		t.peer = sha256.Sum256([]byte(cfg.Replication.Token))
	}
	if cfg.Raft != nil {
		t.raft = sha256.Sum256([]byte(cfg.Raft.Token))
	}
	return t
}

// check returns why the request may not use a route of the scope, or refuseNone.
func (t *tokens) check(sc scope, h *fasthttp.RequestHeader) byte {
	switch {
	case sc == scopeOpen, sc == scopeClient && !t.hasClient:
		return refuseNone
	case sc == scopeAdmin && !t.hasAdmin:
		return refuseNoAdmin
	case sc == scopePeer:
		return checkNode(only(h, api.HeaderReplicationToken), &t.peer, refusePeer)
	case sc == scopeRaft:
		return checkNode(only(h, api.HeaderRaftToken), &t.raft, refuseRaft)
	}
	token, ok := bearer(only(h, "Authorization"))
	if !ok {
		return refuseUnauthenticated
	}
	sum := sha256.Sum256(token)
	isClient := subtle.ConstantTimeCompare(sum[:], t.client[:]) == 1 && t.hasClient
	isAdmin := subtle.ConstantTimeCompare(sum[:], t.admin[:]) == 1 && t.hasAdmin
	switch {
	case isAdmin, isClient && sc == scopeClient:
		return refuseNone
	case isClient:
		return refusePermission
	}
	return refuseUnauthenticated
}

// only returns the value of a header field that stands there once, else nil. Of two, a program in front of this one may have
// looked at the other.
func only(h *fasthttp.RequestHeader, name string) []byte {
	values := h.PeekAll(name)
	if len(values) != 1 {
		return nil
	}
	return values[0]
}

// checkNode returns refuseNone for the token whose sum is want, and otherwise for any other. A route of a scope exists
// only where its token is configured.
func checkNode(token []byte, want *[sha256.Size]byte, otherwise byte) byte {
	if sum := sha256.Sum256(token); subtle.ConstantTimeCompare(sum[:], want[:]) == 1 {
		return refuseNone
	}
	return otherwise
}

// bearer returns the token of an Authorization header. The scheme may be written in any case (RFC 9110).
func bearer(value []byte) ([]byte, bool) {
	scheme, token, ok := bytes.Cut(value, []byte(" "))
	if !ok || !bytes.EqualFold(scheme, []byte("Bearer")) {
		return nil, false
	}
	token = bytes.TrimLeft(token, " ")
	return token, len(token) > 0
}
