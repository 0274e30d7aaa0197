package httpapi

import (
	"bytes"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/valyala/fasthttp"
)

// sameOrigin refuses what a browser sends for a page that did not come from this server. Browsers cannot be
// made to leave out or forge these two headers; other programs do not send them.
func sameOrigin(h *fasthttp.RequestHeader) bool {
	if site := h.Peek("Sec-Fetch-Site"); len(site) > 0 && string(site) != "same-origin" && string(site) != "none" {
		return false
	}
	origin := h.Peek("Origin")
	if len(origin) == 0 {
		return true
	}
	_, host, ok := bytes.Cut(origin, []byte("://"))
	return ok && len(host) > 0 && bytes.EqualFold(host, h.Host())
}

// LocalOnly guards a handler on a loopback listener that is not a Server against web pages, as the calls of a Server are
// guarded: pages of another origin, and those whose name was pointed at this machine.
func LocalOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var h fasthttp.RequestHeader
		h.SetHost(r.Host)
		for _, name := range []string{"Sec-Fetch-Site", "Origin"} {
			h.Set(name, r.Header.Get(name))
		}
		if !isLoopbackHost([]byte(r.Host)) || !sameOrigin(&h) {
			http.Error(w, "web pages of another origin, and names that are not loopback, are refused", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// isLoopbackHost reports whether a Host header names this machine by a loopback name or address, with any
// port. On a loopback listener any other name is a sign of DNS rebinding: a page whose name was pointed at
// 127.0.0.1 to get at what listens there. A missing Host (HTTP/1.0) cannot come from a browser.
func isLoopbackHost(host []byte) bool {
	if len(host) == 0 {
		return true
	}
	name := host
	if host[0] == '[' {
		end := bytes.IndexByte(host, ']')
		if end < 0 || !isPort(host[end+1:]) {
			return false
		}
		name = host[1:end]
		a, err := netip.ParseAddr(string(name))
		return err == nil && a.Is6() && a.Unmap().IsLoopback()
	}
	if i := bytes.IndexByte(host, ':'); i >= 0 {
		if !isPort(host[i:]) {
			return false
		}
		name = host[:i]
	}
	if string(name) == "127.0.0.1" { // nearly always
		return true
	}
	return isLoopbackName(string(name))
}

// isPort reports whether s is empty, or a colon and digits.
func isPort(s []byte) bool {
	if len(s) == 0 {
		return true
	}
	if s[0] != ':' || len(s) > 6 {
		return false
	}
	for _, b := range s[1:] {
		if b < '0' || b > '9' {
			return false
		}
	}
	return true
}

// isLoopbackName reports whether name is localhost, or an IPv4 or bare IPv6 loopback address.
func isLoopbackName(name string) bool {
	if strings.EqualFold(strings.TrimSuffix(name, "."), "localhost") {
		return true
	}
	a, err := netip.ParseAddr(name)
	return err == nil && a.Unmap().IsLoopback()
}

// isLoopbackAddr reports whether a listener at a can be reached from this machine only.
func isLoopbackAddr(a net.Addr) bool {
	switch a := a.(type) {
	case *net.TCPAddr:
		return a.IP.IsLoopback()
	case *net.UnixAddr:
		return true
	}
	return false
}
