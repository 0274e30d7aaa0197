package peer

import (
	"net"
	"net/url"
	"regexp"
	"strings"
	"testing"
)

// FuzzURL: the URL of a node that passes has a scheme, a host and a port and nothing else, for net/url, too; http goes to this machine only;
// and a URL that does not pass is not told again, for it may hold a password.
func FuzzURL(f *testing.F) {
	for _, s := range []string{
		"http://localhost:1", "https://node-1.example:8443/", "http://[::1]:80", "https://[fe80::1%25eth0]:1", "http://user:canarypassword@127.0.0.1:1", "http://127.0.0.1:1/?q", "http://127.0.0.1:1#f",
		"http://10.0.0.1:1", "https://a:0", "https://a:65536", "https://a", "https:a:1", "https://a:1//", "HTTPS://A:1", "https://é:1", "https://a:1\n", "http://localhost.:1", "http://127.1:1", "https://a b:1", "https://a:1?",
		"https://1.]xample:8", "https://a[b:8", "https://[::1:8", "https://[1.2]:8", "https://a,b:8",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		to, err := parse(text)
		if (Check(text) == nil) != (err == nil) {
			t.Fatal("Check and parse differ")
		}
		if err != nil {
			if len(text) > 12 && strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "canary") {
				t.Errorf("%q is told: %v", text, err)
			}
			return
		}
		u, err := url.Parse(text)
		if err != nil || u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "" || u.Host == "" {
			t.Fatalf("%q passes", text)
		}
		host, port, err := net.SplitHostPort(to.address)
		if err != nil || host != to.host || port == "" || host != u.Hostname() || port != u.Port() {
			t.Errorf("%q is %+v", text, to)
		}
		ip := net.ParseIP(host)
		if ip == nil && !regexp.MustCompile(`^[\w.-]+$`).MatchString(host) {
			t.Errorf("%q is the host %q", text, host)
		}
		if !to.tls && !strings.EqualFold(host, "localhost") && (ip == nil || !ip.IsLoopback()) {
			t.Errorf("%q goes to %s in the clear", text, to.address)
		}
	})
}
