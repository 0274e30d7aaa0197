package client

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// Config says how to reach a broker. Zero fields mean the defaults.
type Config struct {
	// Nodes are the base URLs of the broker: one, both of a pair, or all of a cluster, as
	// "http://127.0.0.1:8080". A call goes to the one that answered last, and from there to the others; redirects are
	// followed between them and nowhere else, so a cluster's nodes are given as in its -raft-peers.
	Nodes []string
	// Token is sent with every call; empty for none.
	Token string
	// AdminToken is sent instead of Token with the calls that say that they need it; empty for Token.
	AdminToken string
	// TLS is for https nodes; nil for the certificates of the system. It must not be changed afterwards.
	TLS *tls.Config
	// Timeout is how long one attempt may take, not counting the wait that a fetch asks for. Default 30s.
	Timeout time.Duration
	// Retry says how failed calls are tried again.
	Retry Retry
	// Retrying, if there is one, is called before each pause between attempts: with the failure that would be returned now, how
	// long ago the first attempt of the call failed, and how long the pause will be. It lets a program say what it waits for.
	// The goroutine of the call calls it, so it may be called by many at once. It must not block: its time comes on top of the
	// pause.
	Retrying func(failed *Error, since, pause time.Duration)
	// UnsafePlaintextTokens allows tokens to go unencrypted to hosts that are not loopback. Without it, New
	// refuses such a configuration: anyone on the way could read the token.
	UnsafePlaintextTokens bool
}

// Client talks to one broker. It may be used by many goroutines at once.
type Client struct {
	nodes      []node
	token      string
	adminToken string
	timeout    time.Duration
	retry      Retry
	retrying   func(failed *Error, since, pause time.Duration)
	transport  *http.Transport
	preferred  atomic.Int32 // index of the node that answered last
}

// node is one configured base URL.
type node struct {
	url    string // "scheme://host:port", no slash at the end
	origin string // to compare: lower case, port always given
}

// New checks cfg and makes a client of it. It does not connect.
func New(cfg Config) (*Client, error) {
	c := &Client{
		token:      cfg.Token,
		adminToken: cfg.AdminToken,
		timeout:    cfg.Timeout,
		retry:      cfg.Retry.withDefaults(),
		retrying:   cfg.Retrying,
	}
	if c.adminToken == "" {
		c.adminToken = c.token
	}
	if c.timeout <= 0 {
		c.timeout = 30 * time.Second
	}
	if len(cfg.Nodes) == 0 {
		return nil, errors.New("client: no nodes are configured")
	}
	for _, text := range cfg.Nodes {
		u, err := parseNode(text)
		if err != nil {
			return nil, fmt.Errorf("client: node %q: %w", withoutUser(text), err)
		}
		if c.adminToken != "" && u.Scheme == "http" && !isLoopback(u.Hostname()) && !cfg.UnsafePlaintextTokens {
			return nil, fmt.Errorf("client: node %q: a token would be sent unencrypted: use https", text)
		}
		c.nodes = append(c.nodes, node{url: u.Scheme + "://" + u.Host, origin: origin(u)})
	}
	for _, token := range []string{c.token, c.adminToken} {
		if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return nil, errors.New("client: a token holds a character that is not visible ASCII")
		}
	}
	c.transport = &http.Transport{
		// No proxy, whatever the environment says: it would see the tokens.
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSClientConfig:     cfg.TLS.Clone(),
		TLSHandshakeTimeout: 5 * time.Second,
		MaxIdleConnsPerHost: 256,
		IdleConnTimeout:     90 * time.Second,
		DisableCompression:  true,
		WriteBufferSize:     64 << 10,
		ReadBufferSize:      64 << 10,

		MaxResponseHeaderBytes: 64 << 10,
	}
	return c, nil
}

// Close closes idle connections. Calls that are under way are not touched.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// withoutUser is a URL for an error, without a password that does not belong there.
func withoutUser(text string) string {
	if i := strings.LastIndexByte(text, '@'); i >= 0 {
		return "..." + text[i:]
	}
	return text
}

func parseNode(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil && strings.Contains(text, "@"):
		return nil, errors.New("not a URL") // the error would show what withoutUser hides
	case err != nil:
		return nil, err
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("not an http:// or https:// URL")
	case u.Host == "" || u.Hostname() == "":
		return nil, errors.New("no host")
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || (u.Path != "" && u.Path != "/"):
		return nil, errors.New("only scheme, host and port are allowed")
	}
	return u, nil
}

// origin is what two URLs have in common when they lead to the same node.
func origin(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = "80"
		if u.Scheme == "https" {
			port = "443"
		}
	}
	return u.Scheme + "://" + net.JoinHostPort(strings.ToLower(u.Hostname()), port)
}

func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// find returns the index of the configured node that u leads to, or -1.
func (c *Client) find(u *url.URL) int {
	if (u.Scheme != "http" && u.Scheme != "https") || u.User != nil {
		return -1
	}
	want := origin(u)
	for i := range c.nodes {
		if c.nodes[i].origin == want {
			return i
		}
	}
	return -1
}
