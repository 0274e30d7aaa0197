package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"example.com/mq/api"
)

const canaryToken = "canary-token-of-the-client"

// everyCall are the calls of a client, by name; each returns whether it was answered. Writes are marked.
var everyCall = []struct {
	name   string
	writes bool
	do     func(ctx context.Context, c *Client) error
}{
	{"publish", true, func(ctx context.Context, c *Client) error {
		_, err := c.Publish(ctx, "t", Record{Value: []byte("v")}, PublishOptions{})
		return err
	}},
	{"publish batch", true, func(ctx context.Context, c *Client) error {
		got, err := c.PublishBatch(ctx, "t", make([]Record, 3), PublishOptions{})
		if err == nil && got.Count != 3 {
			return fmt.Errorf("BUG: %d records", got.Count)
		}
		return err
	}},
	{"fetch", false, func(ctx context.Context, c *Client) error {
		page, err := c.Fetch(ctx, "t", 5, FetchOptions{})
		if err == nil {
			return advances(page, 5)
		}
		return err
	}},
	{"fetch from", false, func(ctx context.Context, c *Client) error {
		page, err := c.FetchFrom(ctx, "t", time.UnixMilli(5), FetchOptions{})
		if err == nil {
			return advances(page, 0)
		}
		return err
	}},
	{"group fetch", false, func(ctx context.Context, c *Client) error {
		page, err := c.FetchGroup(ctx, "t", "g", FetchOptions{})
		if err == nil {
			return advances(page, 0)
		}
		return err
	}},
	{"group commit", true, func(ctx context.Context, c *Client) error { _, err := c.CommitGroup(ctx, "t", "g", 1); return err }},
	{"retain", true, func(ctx context.Context, c *Client) error { _, err := c.Retain(ctx, "t", 1); return err }},
	{"snapshot", true, func(ctx context.Context, c *Client) error { _, err := c.Snapshot(ctx); return err }},
	{"configure topic", true, func(ctx context.Context, c *Client) error {
		_, err := c.ConfigureTopic(ctx, api.ConfigureTopicRequest{Topic: "t"})
		return err
	}},
	{"delete topic", true, func(ctx context.Context, c *Client) error { _, err := c.DeleteTopic(ctx, "t"); return err }},
	{"list topics", false, func(ctx context.Context, c *Client) error {
		_, err := c.ListTopics(ctx, api.ListTopicsRequest{})
		return err
	}},
	{"describe topic", false, func(ctx context.Context, c *Client) error { _, err := c.DescribeTopic(ctx, "t"); return err }},
	{"list groups", false, func(ctx context.Context, c *Client) error {
		_, err := c.ListGroups(ctx, api.ListGroupsRequest{})
		return err
	}},
	{"describe group", false, func(ctx context.Context, c *Client) error { _, err := c.DescribeGroup(ctx, "t", "g"); return err }},
	{"delete group", true, func(ctx context.Context, c *Client) error { _, err := c.DeleteGroup(ctx, "t", "g"); return err }},
	{"seek", true, func(ctx context.Context, c *Client) error {
		_, err := c.SeekGroup(ctx, api.SeekRequest{Topic: "t", Group: "g", To: api.SeekEnd})
		return err
	}},
	{"backup begin", false, func(ctx context.Context, c *Client) error { _, err := c.BackupBegin(ctx); return err }},
	{"backup read", false, func(ctx context.Context, c *Client) error {
		b, err := c.BackupRead(ctx, api.BackupReadRequest{Backup: "b", Bytes: 10})
		if err == nil && len(b) > 10 {
			return fmt.Errorf("BUG: %d bytes", len(b))
		}
		return err
	}},
	{"backup end", false, func(ctx context.Context, c *Client) error { return c.BackupEnd(ctx, "b") }},
}

// advances checks a page that the client took: its records rise, from the offset that was asked for on, and the reader goes on
// behind them.
func advances(page *Page, from uint64) error {
	for i, r := range page.Records {
		if i > 0 && r.Offset != from && r.Offset%api.RestoreStep != 0 || r.Offset < from || r.Offset > api.OffsetMax {
			return fmt.Errorf("BUG: record %d where %d was to come", r.Offset, from)
		}
		from = r.Offset + 1
	}
	if len(page.Records) > 0 && (page.NextOffset < from || page.EndOffset < from) {
		return fmt.Errorf("BUG: after record %d the next one is %d, and the end %d", from-1, page.NextOffset, page.EndOffset)
	}
	return nil
}

// FuzzAnswers answers each call of the client with any bytes. Nothing panics; no goroutine is left; a write that no broker's answer
// settles is unknown; and no error tells the token.
func FuzzAnswers(f *testing.F) {
	answer := func(status int, body string, header ...string) []byte {
		return fmt.Appendf(nil, "HTTP/1.1 %d x\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s", status, strings.Join(header, ""), len(body), body)
	}
	page := `{"records":[{"offset":5,"value":"AA==","timestamp_ms":1}],"next_offset":6,"start_offset":0,"end_offset":6}`
	for i, b := range [][]byte{
		answer(200, `{"offset":7}`), answer(200, `{"offsets":[7,8,9],"duplicate":true}`), answer(200, page), answer(200, page), answer(200, page),
		answer(200, `{"next_offset":1}`), answer(200, `{"start_offset":1}`), answer(200, `{"index":1}`), answer(200, `{"settings":{},"own":[]}`),
		answer(200, `{"end_offset":1}`), answer(200, `{"topics":[]}`), answer(200, `{}`), answer(200, `{"groups":[],"cursor":"x"}`),
		answer(503, `{"code":"unavailable","message":"m","outcome_unknown":true}`, "Retry-After: 1\r\n"), answer(200, `{"next_offset":1}`),
		answer(307, `{"code":"not_leader","message":"m","leader":"http://b:1"}`, "Location: http://b:1/v1/groups/seek\r\n"), answer(200, `{"segments":null}`),
		answer(200, "0123456789"), answer(410, `{"code":"offset_gone","message":"m","start_offset":9,"restored_end":3}`),
		answer(200, `{"offset":18446744073709551615}`), []byte("HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"off\r\n0\r\n\r\n"),
		answer(200, `{"records":[{"offset":18446744073709551615,"value":"","timestamp_ms":1}],"next_offset":0,"start_offset":0,"end_offset":0}`),
		answer(200, `{"records":[{"offset":5,"value":"","timestamp_ms":1},{"offset":7,"value":"","timestamp_ms":1}],"next_offset":8,"start_offset":0,"end_offset":8}`),
		answer(200, `{"records":[{"offset":6,"value":"","timestamp_ms":1},{"offset":5,"value":"","timestamp_ms":1}],"next_offset":6,"start_offset":0,"end_offset":6}`),
		answer(200, `{"offsets":[18446744073709551615,0,1]}`), answer(500, canaryToken), answer(400, `{"code":"`+canaryToken+`"}`), {}, []byte("\x16\x03\x01"),
		[]byte("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{}"), []byte("HTTP/1.0 200 OK\r\n\r\n{\"index\":3}"),
	} {
		f.Add(uint8(i), b)
		f.Add(uint8(2), b)
		f.Add(uint8(1), b)
		f.Add(uint8(4), b)
	}
	f.Fuzz(func(t *testing.T, which uint8, b []byte) {
		call := everyCall[int(which)%len(everyCall)]
		synctest.Test(t, func(t *testing.T) {
			c, err := New(Config{Nodes: []string{"http://127.0.0.1:1"}, Token: canaryToken, Retry: Retry{For: -1}})
			if err != nil {
				t.Fatal(err)
			}
			c.transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
				near, far := net.Pipe()
				go func() { // ends with the connection
					defer far.Close()
					if _, err := io.ReadFull(far, make([]byte, 1)); err != nil {
						return
					}
					go io.Copy(io.Discard, far)
					far.Write(b)
					time.Sleep(time.Second)
				}()
				return near, nil
			}
			err = call.do(t.Context(), c)
			c.Close()
			time.Sleep(time.Minute)
			if err == nil {
				if !bytes.Contains(b, []byte("200")) {
					t.Errorf("%s: %q is taken", call.name, b)
				}
				return
			}
			if strings.HasPrefix(err.Error(), "BUG") {
				t.Errorf("%s: %q is taken: %v", call.name, b, err)
				return
			}
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("%s: %T %v", call.name, err, err)
			}
			if !bytes.Contains(b, []byte(canaryToken)) && strings.Contains(err.Error(), canaryToken) {
				t.Errorf("%s: the error tells the token: %v", call.name, err)
			}
			if len(err.Error()) > len(b)*6+2000 {
				t.Errorf("%s: an error of %d bytes", call.name, len(err.Error()))
			}
			if says := brokerSays[statusCode{e.Status, e.Code}]; call.writes && !e.Unknown && says != saysNotDone && e.Status != http.StatusTemporaryRedirect {
				t.Errorf("%s: %q makes it sure that nothing was done: %v", call.name, b, err)
			}
			if !call.writes && e.Unknown {
				t.Errorf("%s: a read is in doubt: %v", call.name, err)
			}
		})
	})
}

// FuzzRetryAfter: whatever a header says, nobody waits for longer than the limit, or less than not at all.
func FuzzRetryAfter(f *testing.F) {
	now := time.UnixMilli(1_700_000_000_000)
	for _, s := range []string{"", "1", "-1", "99999999999999999999", "Wed, 21 Oct 2015 07:28:00 GMT", "Fri, 31 Dec 9999 23:59:59 GMT", "1e9", " 1", "0x1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, header string) {
		if d := retryAfter(header, now); d < 0 || d > retryAfterMax {
			t.Errorf("%q is %v", header, d)
		}
	})
}
