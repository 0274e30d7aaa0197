package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"example.com/mq/api"
	"example.com/mq/client"
)

// Limits of asking a node.
const (
	statusTimeout  = 5 * time.Second // a node that is that slow is of no use, and somebody waits for the answer
	statusBytesMax = 64 << 10
)

// system is what several nodes make up, and how they are asked about it.
type system struct {
	of        string // as in "a node of ..."
	path      string // of the status
	header    string // that the token goes into
	token     string // what the token is called
	otherRole string // what a node runs with that knows no such path
}

// asker asks nodes that make up a system.
type asker struct {
	system
	http    *http.Client
	secret  string
	timeout time.Duration
}

// asker returns what asks the nodes of the --url flags with a token of the system. The caller closes it.
func (g *Global) asker(system system, secret string) (*asker, error) {
	config, err := g.tls()
	if err != nil {
		return nil, err
	}
	// The rules for URLs, and for tokens on the way to them, are those of every other call.
	rules, err := client.New(client.Config{Nodes: g.URL, Token: secret, TLS: config})
	if err != nil {
		return nil, usageError{err}
	}
	rules.Close()
	return &asker{system: system, secret: secret, timeout: min(g.Timeout, statusTimeout), http: &http.Client{
		Transport:     &http.Transport{TLSClientConfig: config},                                      // no proxy: it would see the token
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // the token stays here
	}}, nil
}

func (a *asker) close() { a.http.CloseIdleConnections() }

// each calls ask for all URLs at the same time, without a slash at their end, and returns when all have returned.
func (a *asker) each(urls []string, ask func(i int, base string)) {
	var group sync.WaitGroup
	for i, base := range urls {
		group.Go(func() { ask(i, strings.TrimSuffix(base, "/")) }) // ended by the timeout
	}
	group.Wait()
}

// get asks a node for its status, and decodes it into s. valid says whether that is one.
func (a *asker) get(ctx context.Context, base string, s any, valid func() bool) error {
	body, err := a.do(ctx, http.MethodGet, base+a.path, nil)
	if err != nil {
		return err
	}
	return a.decode(body, s, valid)
}

// decode decodes an answer.
func (a *asker) decode(body []byte, s any, valid func() bool) error {
	if json.Unmarshal(body, s) != nil || !valid() {
		return fmt.Errorf("its answer is not that of a node of %s", a.of)
	}
	return nil
}

// do sends a request to a node, and returns the body of an answer of status 200. Any other is an error.
func (a *asker) do(ctx context.Context, method, to string, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, to, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set(a.header, a.secret)
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
	}
	answer, err := a.http.Do(r)
	if err != nil {
		return nil, a.explain(err)
	}
	defer answer.Body.Close()
	got, err := io.ReadAll(io.LimitReader(answer.Body, statusBytesMax+1))
	if err != nil {
		return nil, a.explain(err)
	}
	got = []byte(a.scrub(string(got)))
	switch {
	case answer.StatusCode != http.StatusOK:
		return nil, a.refusal(answer.StatusCode, got)
	case len(got) > statusBytesMax:
		return nil, fmt.Errorf("its answer is not that of a node of %s", a.of)
	}
	return got, nil
}

// scrub takes the token out of what somebody answered: a proxy may send back what it got. What is shorter than 6 bytes is no
// secret, and may stand in any text.
func (a *asker) scrub(text string) string {
	if len(a.secret) < 6 {
		return text
	}
	return strings.ReplaceAll(text, a.secret, "[token]")
}

// explain shortens an error of the HTTP client: the URL stands in front of it anyway.
func (a *asker) explain(err error) error {
	var wrapped *url.Error
	var network net.Error
	switch {
	case errors.Is(err, context.Canceled):
		return errInterrupted
	case errors.As(err, &network) && network.Timeout():
		return fmt.Errorf("not reachable: no answer within %v", a.timeout)
	case errors.As(err, &wrapped):
		err = wrapped.Err
	}
	return fmt.Errorf("not reachable: %w", err)
}

// refusal is the error for an answer other than 200.
func (a *asker) refusal(status int, body []byte) error {
	var e api.Error
	if json.Unmarshal(body, &e) != nil {
		e = api.Error{}
	}
	switch {
	case e.Code == api.CodeUnauthenticated:
		return fmt.Errorf("it does not take this %s", a.token)
	case e.Code == api.CodeNotFound:
		return fmt.Errorf("it is no node of %s: it runs with %s", a.of, a.otherRole)
	case e.Message != "":
		return fmt.Errorf("status %d: %s", status, a.scrub(e.Message)) // it may have been escaped
	}
	return fmt.Errorf("status %d, which is not from a node of %s", status, a.of)
}
