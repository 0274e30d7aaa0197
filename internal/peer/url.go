package peer

import (
	"errors"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// target is what a URL says.
type target struct {
	tls     bool
	host    string // name or address, without brackets
	address string // host:port
}

var errInTheClear = errors.New("the token must not cross a network unencrypted: use https, or http to this machine only")

// Check says what is wrong with the URL of a node, if anything: it must be http://host:port or
// https://host:port, with nothing else, and http only to localhost or a loopback address. The error does not
// repeat the URL, which may hold a password that does not belong there.
func Check(text string) error {
	_, err := parse(text)
	return err
}

func parse(text string) (*target, error) {
	u, err := url.Parse(text)
	if err != nil || u.Opaque != "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, errors.New("want http://host:port or https://host:port")
	}
	if u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || (u.Path != "" && u.Path != "/") {
		return nil, errors.New("only scheme, host and port are allowed")
	}
	host, port := u.Hostname(), u.Port()
	if !isName(host) && net.ParseIP(host) == nil {
		return nil, errors.New("the host must be a name of ASCII letters, digits, '.', '-' and '_', or an address without a zone")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return nil, errors.New("a port from 1 to 65535 is needed")
	}
	t := &target{tls: u.Scheme == "https", host: host, address: net.JoinHostPort(host, port)}
	if !t.tls && !isLoopback(host) {
		return nil, errInTheClear
	}
	return t, nil
}

// isName reports whether host is written in the characters that names of machines have. net/url lets more through,
// of which some make an address that cannot be taken apart again (a single bracket, for one).
func isName(host string) bool {
	for _, c := range []byte(host) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '-', c == '_':
		default:
			return false
		}
	}
	return host != ""
}

func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
