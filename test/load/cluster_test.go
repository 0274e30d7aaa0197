package load

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// redirector is a node that sends all calls to another URL.
func redirector(t *testing.T, status int, leader, location string) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if location != "" {
			w.Header().Set("Location", location)
		}
		w.WriteHeader(status)
		w.Write([]byte(`{"code":"not_leader","message":"ask the other one","leader":"` + leader + `"}`))
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// A redirect to a node of the cluster is followed, and the client stays there; one to anybody else is a mistake.
func TestRedirects(t *testing.T) {
	s := httptest.NewServer(newBroker(""))
	defer s.Close()
	follower := redirector(t, http.StatusTemporaryRedirect, s.URL, s.URL+"/v1/publish")
	for name, test := range map[string]struct {
		urls []string
		want Outcome
		code string
	}{
		"followed":      {[]string{follower, s.URL}, Done, ""},
		"to a stranger": {[]string{follower}, NotDone, "unreadable"},
		"around":        {[]string{redirector(t, http.StatusServiceUnavailable, "", "")}, NotDone, "not_leader"},
	} {
		l := New(Config{})
		var answers []Answer
		c := Open(Options{URLs: test.urls, Cluster: true, Heard: func(_, _ string, a Answer) { answers = append(answers, a) }})
		defer c.Close()
		c.at.Store(0)
		if a := l.Probe(t.Context(), c, 10); a.Outcome != test.want || a.Code != test.code {
			t.Errorf("%s: %v after %v", name, a, answers)
		}
	}
	l := New(Config{})
	c := Open(Options{URLs: []string{redirector(t, http.StatusTemporaryRedirect, s.URL, s.URL+"/v1/fetch"), s.URL}})
	defer c.Close()
	if a := l.Probe(t.Context(), c, 10); a.Code != "unreadable" || l.Err() == nil {
		t.Errorf("a Location that is not the leader's: %v, %v", a, l.Err())
	}
}

// Two nodes that point to each other do not hold a call for ever.
func TestRedirectLoop(t *testing.T) {
	var urls [2]string
	calls := 0
	for i := range urls {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			calls++
			w.Header().Set("Location", urls[1-i]+r.URL.Path)
			w.WriteHeader(http.StatusTemporaryRedirect)
			w.Write([]byte(`{"code":"not_leader","message":"","leader":"` + urls[1-i] + `"}`))
		}))
		defer s.Close()
		urls[i] = s.URL
	}
	c := Open(Options{URLs: urls[:], Cluster: true})
	defer c.Close()
	if a := New(Config{}).Probe(t.Context(), c, 10); a.Outcome != NotDone || !a.elsewhere() || calls != hopsMax+1 {
		t.Errorf("%v after %d calls", a, calls)
	}
}
