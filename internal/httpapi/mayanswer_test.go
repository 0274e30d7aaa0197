package httpapi

import (
	"sync/atomic"
	"testing"

	"example.com/mq/api"
)

// A node that may not answer any more sends no acknowledgement, not even one that was ready: it closes the connection.
// Reads and errors are answered.
func TestMayAnswer(t *testing.T) {
	var may atomic.Bool
	may.Store(true)
	s := start(t, func(c *Config) { c.MayAnswer, c.AdminToken = may.Load, "admin-token-1" })
	writes := map[string]string{
		api.PathPublish:      `{"topic":"t","value":"YQ=="}`,
		api.PathPublishBatch: `{"topic":"t","messages":[{"value":"YQ=="}]}`,
		api.PathGroupsCommit: `{"group":"g","topic":"t","next_offset":0}`,
		api.PathTopicsRetain: `{"topic":"t","start_offset":0}`,

		api.PathTopicsConfigure: `{"topic":"t","reset":true}`,
		api.PathTopicsDelete:    `{"topic":"t"}`,
		api.PathGroupsDelete:    `{"group":"g","topic":"t"}`,
		api.PathGroupsSeek:      `{"group":"g","topic":"t","to":"start"}`,
	}
	s.fake.seed()
	for path, r := range s.routes {
		if _, ok := writes[path]; ok != r.write {
			t.Fatalf("%s is a write: %v", path, r.write)
		}
	}
	c := s.dial()
	c.send(request1(api.PathPublish, writes[api.PathPublish]))
	if a := c.receive("POST"); a.status != 200 {
		t.Fatalf("while it may: %d", a.status)
	}
	may.Store(false)
	for path, body := range writes {
		c := s.dial()
		c.send(request1(path, body, "Authorization", "Bearer admin-token-1"))
		c.atEnd()
	}
	if n := s.fake.callCount(); n < 1+len(writes) {
		t.Fatalf("%d calls came to the broker", n)
	}
	if a := s.post(api.PathFetch, `{"topic":"t","offset":0}`); a.status != 200 {
		t.Errorf("a fetch: %d", a.status)
	}
	if a := s.post(api.PathGroupsSeek, `{"group":"g","topic":"t","to":"start","dry_run":true}`); a.status != 200 {
		t.Errorf("a seek that only asks: %d", a.status)
	}
	if a := s.post(api.PathPublish, `{"topic":7}`); a.status != 400 {
		t.Errorf("an error: %d", a.status)
	}
	may.Store(true)
	if a := s.post(api.PathPublish, writes[api.PathPublish]); a.status != 200 {
		t.Errorf("when it may again: %d", a.status)
	}
}
