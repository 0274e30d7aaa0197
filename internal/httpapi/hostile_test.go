package httpapi

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/mq/api"
	"example.com/mq/internal/clock"
	"example.com/mq/test/report"
)

// hostileBodies are not legal for any call, and most are not JSON.
var hostileBodies = func() []string {
	list := []string{
		// not JSON, or not one object
		`{`, `}`, `{}}`, `{{}}`, `[]`, `[{}]`, `null`, `true`, `false`, `0`, `1`, `-1`, `"x"`, `""`, `{"`, `{"topic`, `{"topic"`,
		`{"topic":`, `{"topic":"t"`, `{"topic":"t",`, `{"topic":"t",}`, `{,"topic":"t"}`, `{"topic":"t",,"value":""}`, `{"topic" "t"}`,
		`{"topic":"t" "value":""}`, `{topic:"t"}`, `{'topic':'t'}`, `{"topic":"t"}{}`, `{} {}`, `{}x`, `{},`, `{}null`, `{} // c`, `/* c */ {}`,
		`{"topic":"t"}` + "\x00", "\x00", "\x00{}", "\ufeff{}", "{}\ufeff", "\u00a0{}", "{\u00a0}", "\v{}", "\f{}", `{"topic":NaN}`, `{"offset":Infinity}`,
		`{"topic":"t","value":"",}`, `{"a":1}`, `{"":1}`, `{"\u0000":1}`, `{1:2}`, `{null:1}`, `undefined`, `topic=t&value=`, `<xml/>`, `%7B%7D`,
		"\xff", "\xff\xfe{\x00}\x00", "\x1f\x8b\x08\x00", "{\"topic\":\"\n\"}", "{\"topic\":\"\t\"}", "{\"topic\":\"\x00\"}", "{\"topic\":\"\x1f\"}",
		// unknown, repeated and wrongly spelled names
		`{"topics":"t","value":""}`, `{"Topic":"t","value":""}`, `{"TOPIC":"t"}`, `{"topic ":"t"}`, `{" topic":"t"}`, `{"topi\u0063s":"t"}`,
		`{"topic":"t","topic":"t","value":""}`, `{"topic":"t","topi\u0063":"t","value":""}`, `{"topic":"t","value":"","value":""}`,
		`{"topic":"t","value":"","__proto__":{}}`, `{"topic":"t","value":"","x":1}`, `{"topic":"t","offset":0,"offset":0}`,
		`{"topic":"t","Offset":0}`, `{"topic":"t","offset":0,"limit":1,"limit":1}`, `{"group":"g","group":"g","topic":"t"}`,
		`{"topic":"t","messages":[{"value":""}],"messages":[{"value":""}]}`, `{"topic":"t","messages":[{"value":"","value":""}]}`,
		`{"topic":"t","messages":[{"Value":""}]}`, `{"topic":"t","messages":[{"value":"","topic":"u"}]}`, `{"topic":"t","messages":[{"value":"","request_id":"r"}]}`,
		// null and wrong types
		`{"topic":null,"value":""}`, `{"topic":"t","value":null}`, `{"topic":"t","key":null,"value":""}`, `{"topic":"t","value":"","request_id":null}`,
		`{"topic":1,"value":""}`, `{"topic":true,"value":""}`, `{"topic":[],"value":""}`, `{"topic":{},"value":""}`, `{"topic":["t"],"value":""}`,
		`{"topic":"t","value":1}`, `{"topic":"t","value":[]}`, `{"topic":"t","value":{}}`, `{"topic":"t","value":[1,2]}`, `{"topic":"t","key":1,"value":""}`,
		`{"topic":"t","value":"","request_id":1}`, `{"topic":"t","value":"","request_id":{}}`, `{"topic":"t","messages":null}`, `{"topic":"t","messages":{}}`,
		`{"topic":"t","messages":"x"}`, `{"topic":"t","messages":1}`, `{"topic":"t","messages":[null]}`, `{"topic":"t","messages":[1]}`, `{"topic":"t","messages":[[]]}`,
		`{"topic":"t","messages":["x"]}`, `{"topic":"t","messages":[{"value":null}]}`, `{"topic":"t","messages":[{"value":1}]}`, `{"topic":"t","messages":[{"key":null,"value":""}]}`,
		`{"topic":"t","offset":null}`, `{"topic":"t","offset":"0"}`, `{"topic":"t","offset":true}`, `{"topic":"t","offset":[0]}`, `{"topic":"t","offset":{}}`,
		`{"topic":"t","offset":0,"limit":null}`, `{"topic":"t","offset":0,"limit":"1"}`, `{"topic":"t","offset":0,"wait_ms":null}`, `{"topic":"t","offset":0,"wait_ms":"1"}`,
		`{"group":null,"topic":"t"}`, `{"group":1,"topic":"t"}`, `{"group":"g","topic":"t","next_offset":null}`, `{"group":"g","topic":"t","next_offset":"0"}`,
		`{"topic":"t","start_offset":null}`, `{"topic":"t","start_offset":"0"}`, `{"topic":"t","start_offset":false}`,
		// missing and empty
		`{"value":""}`, `{"topic":"t"}`, `{"topic":""}`, `{"topic":"","value":""}`, `{"topic":"t","value":"","request_id":""}`, `{"topic":"t","messages":[]}`,
		`{"topic":"t","messages":[{}]}`, `{"topic":"t","messages":[{"key":""}]}`, `{"topic":"t","messages":[{"value":""},{}]}`, `{"messages":[{"value":""}]}`,
		`{"offset":0}`, `{"topic":"","offset":0}`, `{"group":"g"}`, `{"group":"","topic":"t"}`, `{"group":"g","topic":""}`, `{"group":"g","next_offset":0}`,
		`{"group":"g","topic":"","next_offset":0}`, `{"start_offset":0}`, `{"topic":"","start_offset":0}`,
	}
	// the fields of rare calls
	list = append(list,
		`{"topic":"t","reset":null}`, `{"topic":"t","reset":"true"}`, `{"topic":"t","reset":1}`, `{"topic":"t","reset":0}`, `{"topic":"t","reset":[]}`,
		`{"topic":"t","reset":true,"reset":true}`, `{"topic":"t","reset":True}`, `{"topic":"t","reset":tru}`, `{"topic":"t","Reset":true}`,
		`{"topic":"t","retention_ms":"1"}`, `{"topic":"t","retention_ms":"none"}`, `{"topic":"t","retention_ms":true}`, `{"topic":"t","retention_ms":[]}`,
		`{"topic":"t","retention_ms":{}}`, `{"topic":"t","retention_ms":nul}`, `{"topic":"t","retention_ms":NULL}`, `{"topic":"t","retention_ms":null,"retention_ms":null}`,
		`{"topic":"t","retention":1}`, `{"topic":"t","retention_MS":1}`, `{"retention_ms":1}`, `{"topic":null,"retention_ms":1}`, `{"topic":"t","retention_ms":1,"offset":0}`,
		`{"prefix":null}`, `{"prefix":1}`, `{"prefix":[]}`, `{"prefix":"a\u0000"}`, `{"prefix":"\u0085"}`, `{"prefix":"`+strings.Repeat("x", 256)+`"}`, `{"prefix":"a","prefix":"a"}`,
		`{"Prefix":"a"}`, `{"prefix":"\ud800"}`, "{\"prefix\":\"\xff\"}", `{"limit":"1"}`, `{"limit":null}`, `{"limit":0}`, `{"limit":1001}`, `{"limit":1,"limit":1}`,
		`{"cursor":null}`, `{"cursor":""}`, `{"cursor":1}`, `{"cursor":"x"}`, `{"cursor":"dA"}`, `{"cursor":"dHQ="}`, `{"cursor":"dHT"}`, `{"cursor":"d HQ"}`, `{"cursor":"dHQ\n"}`,
		`{"cursor":"Z3g"}`, `{"cursor":"eHg"}`, `{"cursor":"dAB0"}`, `{"cursor":"Z2cA"}`, `{"cursor":"ZwB0"}`, `{"cursor":"Z2cAdAB0"}`, `{"cursor":"dIU"}`, `{"cursor":"+/+/"}`, `{"cursor":"dP8"}`,
		`{"cursor":"`+strings.Repeat("A", 684)+`"}`, `{"cursor":"`+strings.Repeat("A", 1025)+`"}`, `{"cursor":"`+strings.Repeat("A", 10000)+`"}`, `{"cursor":"dHQ","cursor":"dHQ"}`, `{"topic":""}`,
		`{"group":"g","topic":"t","to":"middle"}`, `{"group":"g","topic":"t","to":"Start"}`, `{"group":"g","topic":"t","to":""}`, `{"group":"g","topic":"t","to":null}`,
		`{"group":"g","topic":"t","to":0}`, `{"group":"g","topic":"t","to":"end "}`, `{"group":"g","topic":"t","to":"`+strings.Repeat("end", 100)+`"}`, `{"to":"end"}`, `{"group":"g","to":"end"}`,
		`{"group":"g","topic":"t","to":"end","to":"end"}`, `{"group":"g","topic":"t","to":"end","offset":0}`, `{"group":"g","topic":"t","offset":0,"time_ms":0}`, `{"group":"g","topic":"t","time_ms":0,"to":"start"}`,
		`{"group":"g","topic":"t","offset":0,"time_ms":0,"to":"start"}`, `{"group":"g","topic":"t","dry_run":true}`, `{"group":"g","topic":"t","to":"end","dry_run":null}`, `{"group":"g","topic":"t","to":"end","dry_run":"true"}`,
		`{"group":"g","topic":"t","to":"end","dry_run":1}`, `{"group":"g","topic":"t","to":"end","limit":1}`, `{"group":"g","topic":"t","next_offset":0,"dry_run":true}`,
		`{"topic":"t","offset":0,"from_ms":0}`, `{"topic":"t","from_ms":0,"offset":0}`, `{"topic":"t","from_ms":null}`, `{"topic":"t","from_ms":"0"}`, `{"topic":"t","from_ms":281474976710656}`, `{"from_ms":0}`,
		`{"topic":"t","from_ms":0,"from_ms":0}`, `{"group":"g","topic":"t","from_ms":0}`, `{"topic":"t","time_ms":0}`, `{"group":"g","topic":"t","time_ms":281474976710656}`,
		`{"backup":""}`, `{"backup":null}`, `{"backup":1}`, `{"backup":"b","offset":0}`, `{"backup":"b","offset":0,"bytes":0}`, `{"backup":"b","offset":0,"bytes":4194305}`, `{"backup":"b","bytes":1}`,
		`{"backup":"b","segment":null,"offset":0,"bytes":1}`, `{"backup":"b","segment":"1","offset":0,"bytes":1}`, `{"backup":"b","segment":-1,"offset":0,"bytes":1}`, `{"offset":0,"bytes":1}`, `{"backup":"b\u0000"}`,
	)
	// numbers
	for _, n := range []string{"0", "-1", "1.5", "1.0", "1e3", "01", "9007199254740992", "18446744073709551617", "+1", "-", "Infinity"} {
		for _, name := range []string{"retention_ms", "retention_bytes", "retention_records"} {
			list = append(list, `{"topic":"t","`+name+`":`+n+`}`)
		}
	}
	for _, n := range []string{"-1", "-0", "+1", "1.0", "1.5", "0.0", "1e3", "1E3", "1e-1", "0e0", "01", "00", "0x1", ".5", "5.", "1_000", "9007199254740992",
		"9007199254740993", "18446744073709551615", "18446744073709551616", "36893488147419103232", "99999999999999999999999999999999", "1e400", "--1", "1 2", "NaN", "Infinity", "-"} {
		list = append(list, `{"topic":"t","offset":`+n+`}`, `{"group":"g","topic":"t","next_offset":`+n+`}`, `{"topic":"t","start_offset":`+n+`}`)
		list = append(list, `{"topic":"t","offset":0,"limit":`+n+`}`, `{"group":"g","topic":"t","wait_ms":`+n+`}`)
	}
	for _, n := range []string{"0", "1001", "20001", "4294967297"} {
		list = append(list, `{"topic":"t","offset":0,"limit":`+n+`}`, `{"group":"g","topic":"t","limit":`+n+`}`)
	}
	list = append(list, `{"topic":"t","offset":0,"wait_ms":20001}`, `{"group":"g","topic":"t","wait_ms":20001}`)
	// base64
	for _, v := range []string{"A", "AA", "AAA", "AA=", "A===", "====", "=AAA", "AA==A", "AA==AA==", "AAAA=", "AAAAA", "AB==", "AAB=", "AA==\\n", "\\nAA==", "AA\\r\\n==",
		"AA==\\u000a", "AA== ", " AA==", "A A=", "-_-_", "AA-_", "AA.=", "AA**", "é", "AA\\u0000=", "%41%41", "QUJD\\\\n", strings.Repeat("A", 63), strings.Repeat("A", 100) + "=",
		strings.Repeat("A", 99) + "-", strings.Repeat("A", 64) + "\\n" + strings.Repeat("A", 64), strings.Repeat("A", 126) + "B="} {
		list = append(list, `{"topic":"t","value":"`+v+`"}`, `{"topic":"t","key":"`+v+`","value":""}`, `{"topic":"t","messages":[{"value":"AA=="},{"value":"`+v+`"}]}`)
	}
	// strings that are not UTF-8, lone surrogates, control characters, escapes that do not exist
	for _, v := range []string{"\xff", "\xc3", "\xc3(", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xc0\x80", "a\x80b", "\xe2\x82", `\ud800`, `\udc00`, `\ud800\ud800`, `\ud800x`, `\udc00\ud800`,
		`\u12`, `\uzzzz`, `\x41`, `\'`, `\`, `\u0000`, `\u001f`, `\n`, `\u007f`, "\x7f", `\u0085`, "\u0085", "\u009f", strings.Repeat("x", 256), strings.Repeat("é", 128), strings.Repeat(`\u0041`, 256)} {
		list = append(list, `{"topic":"`+v+`","value":""}`, `{"topic":"`+v+`","offset":0}`, `{"group":"`+v+`","topic":"t"}`, `{"group":"g","topic":"`+v+`","next_offset":0}`,
			`{"topic":"`+v+`","start_offset":0}`)
	}
	for _, v := range []string{"\xff", `\ud800`, `\udc00`, strings.Repeat("x", 256)} {
		list = append(list, `{"topic":"t","value":"","request_id":"`+v+`"}`)
	}
	// depth and number
	deep := strings.Repeat("[", 10000)
	list = append(list, deep, `{"topic":`+deep+`}`, strings.Repeat(`{"topic":`, 10000), `{"x":`+deep+strings.Repeat("]", 10000)+`}`, `{"messages":`+deep+`}`,
		`{"topic":"t","messages":[`+strings.Repeat(`{"value":""},`, 32)+`{"value":""}]}`, strings.Repeat(" ", 100000)+"x", strings.Repeat(`"`, 9999),
		`{"topic":"t",`+strings.Repeat(`"x":1,`, 1000)+`"y":1}`, strings.Repeat("{}", 5000), `{"topic":"t","value":"`+strings.Repeat(`\u0041`, 1000)+`x"}`)
	return list
}()

// legalFor has those of hostileBodies that some calls do take.
var legalFor = map[string][]string{
	`{"topic":"t"}`: {api.PathTopicsConfigure, api.PathTopicsDescribe, api.PathTopicsDelete, api.PathGroupsList},
}

// TestGoodBodiesAreComplete: the tables of tests have every call that there is.
func TestGoodBodiesAreComplete(t *testing.T) {
	for path, r := range start(t).routes {
		if r.shape != nil && (goodBodies[path] == "" || shapes[path] != r.shape) {
			t.Errorf("%s is missing in goodBodies or shapes", path)
		}
	}
}

// TestHostileBodies sends every hostile body to every call that a server can have, of whatever role. A whole node stands behind
// it: none of the bodies may be taken, or leave an entry in its log.
func TestHostileBodies(t *testing.T) {
	if n := len(hostileBodies); n < 200 {
		t.Fatalf("only %d bodies", n)
	}
	b := newRealBroker(t, clock.NewManual(time.UnixMilli(1_700_000_000_000)))
	s := start(t, everyRoute, func(c *Config) { c.Broker = b })
	t.Cleanup(func() { b.Close() })
	b.seed(t)
	before := b.last(t)
	calls, sent := 0, 0
	for path, r := range s.routes {
		if r.shape == nil {
			continue
		}
		calls++
		c := s.dial()
		for _, body := range hostileBodies {
			if slices.Contains(legalFor[body], path) {
				continue
			}
			sent++
			c.send(request1(path, body, "Authorization", "Bearer "+fuzzAdmin, api.HeaderRaftToken, fuzzRaft))
			a := c.receive("POST")
			if !r.shape.records && len(body) > bodySmallMax {
				if a.status != 413 || a.code() != "too_large" || !a.closed {
					t.Errorf("%s, %d bytes: %d %s", path, len(body), a.status, a.body)
				}
				c.Close()
				c = s.dial()
				continue
			}
			if a.status != 400 || a.code() != "invalid_argument" || a.json["message"] == "" {
				t.Errorf("%s %.200q: %d %s", path, body, a.status, a.body)
			}
			if a.closed {
				t.Errorf("%s %.200q: the connection was closed", path, body)
				c = s.dial()
			}
		}
		c.Close()
		if after := b.last(t); after != before {
			t.Fatalf("%s: the log has grown from entry %d to %d", path, before, after)
		}
	}
	report.Count(t, "hostile bodies", int64(sent))
	if calls < 19 {
		t.Errorf("only %d calls", calls)
	}
	if len(b.seen) > 0 {
		t.Errorf("%q reached the broker", b.seen)
	}
}

// TestFieldIsNamed checks that the answer names what is wrong.
func TestFieldIsNamed(t *testing.T) {
	s := start(t, func(c *Config) { c.AdminToken = "root" })
	for _, row := range []struct{ path, body, field string }{
		{api.PathPublish, `{"topic":"t","value":"","x":1}`, "x"},
		{api.PathPublish, `{"Topic":"t","value":""}`, "Topic"},
		{api.PathPublish, `{"topic":"t","value":"","value":""}`, "value"},
		{api.PathPublish, `{"topic":null,"value":""}`, "topic"},
		{api.PathPublish, `{"topic":5,"value":""}`, "topic"},
		{api.PathPublish, `{"value":""}`, "topic"},
		{api.PathPublish, `{"topic":"t"}`, "value"},
		{api.PathPublish, `{"topic":"t","value":"@"}`, "value"},
		{api.PathPublish, `{"topic":"t","key":"AA=\n","value":""}`, "key"},
		{api.PathPublish, `{"topic":"t","key":"AA==\n","value":""}`, "key"},
		{api.PathPublish, `{"topic":"\ud800","value":""}`, "topic"},
		{api.PathPublish, "{\"topic\":\"\xff\",\"value\":\"\"}", "topic"},
		{api.PathPublish, `{"topic":"t","value":"","request_id":""}`, "request_id"},
		{api.PathPublishBatch, `{"topic":"t","messages":[]}`, "messages"},
		{api.PathPublishBatch, `{"topic":"t","messages":[{"value":""},{"value":"A"}]}`, "messages[1].value"},
		{api.PathPublishBatch, `{"topic":"t","messages":[{"value":""},{"key":"A","value":""}]}`, "messages[1].key"},
		{api.PathPublishBatch, `{"topic":"t","messages":[{"key":""}]}`, "messages[0].value"},
		{api.PathPublishBatch, `{"topic":"t","messages":[{"value":""},7]}`, "messages[1]"},
		{api.PathPublishBatch, `{"topic":"t","messages":[{"value":"","offset":1}]}`, "messages[0].offset"},
		{api.PathPublishBatch, `{"topic":"t","messages":[` + strings.Repeat(`{"value":""},`, 32) + `{"value":""}]}`, "messages"},
		{api.PathFetch, `{"topic":"t","offset":-1}`, "offset"},
		{api.PathFetch, `{"topic":"t","offset":1.0}`, "offset"},
		{api.PathFetch, `{"topic":"t","offset":9007199254740992}`, "offset"},
		{api.PathFetch, `{"topic":"t","offset":0,"limit":0}`, "limit"},
		{api.PathFetch, `{"topic":"t","offset":0,"limit":1001}`, "limit"},
		{api.PathFetch, `{"topic":"t","offset":0,"wait_ms":20001}`, "wait_ms"},
		{api.PathGroupsFetch, `{"topic":"t"}`, "group"},
		{api.PathGroupsCommit, `{"group":"g","topic":"t"}`, "next_offset"},
		{api.PathTopicsRetain, `{"topic":"t"}`, "start_offset"},
		{api.PathSnapshot, `{"index":1}`, "index"},
		{api.PathFetch, `{"topic":"t"}`, "offset"},
		{api.PathFetch, `{"topic":"t","from_ms":0,"offset":0}`, "from_ms"},
		{api.PathFetch, `{"topic":"t","from_ms":281474976710656}`, "from_ms"},
		{api.PathFetch, `{"topic":"t","from_ms":null}`, "from_ms"},
		{api.PathTopicsConfigure, `{"retention_ms":1}`, "topic"},
		{api.PathTopicsConfigure, `{"topic":"t","retention_ms":0}`, "retention_ms"},
		{api.PathTopicsConfigure, `{"topic":"t","retention_bytes":"1"}`, "retention_bytes"},
		{api.PathTopicsConfigure, `{"topic":"t","retention_records":9007199254740992}`, "retention_records"},
		{api.PathTopicsConfigure, `{"topic":"t","reset":null}`, "reset"},
		{api.PathTopicsConfigure, `{"topic":"t","start_offset":0}`, "start_offset"},
		{api.PathTopicsList, `{"topic":"t"}`, "topic"},
		{api.PathTopicsList, `{"prefix":"\n"}`, "prefix"},
		{api.PathTopicsList, `{"limit":0}`, "limit"},
		{api.PathTopicsList, `{"cursor":""}`, "cursor"},
		{api.PathTopicsList, `{"cursor":"Z2cAdA"}`, "cursor"},
		{api.PathGroupsList, `{"cursor":"dHQ"}`, "cursor"},
		{api.PathGroupsList, `{"group":"g"}`, "group"},
		{api.PathTopicsDescribe, `{}`, "topic"},
		{api.PathTopicsDelete, `{"topic":"t","yes":true}`, "yes"},
		{api.PathGroupsDescribe, `{"topic":"t"}`, "group"},
		{api.PathGroupsDelete, `{"group":"g"}`, "topic"},
		{api.PathGroupsSeek, `{"group":"g","topic":"t"}`, "offset"},
		{api.PathGroupsSeek, `{"group":"g","topic":"t","to":"start","offset":0}`, "to"},
		{api.PathGroupsSeek, `{"group":"g","topic":"t","time_ms":0,"offset":0}`, "time_ms"},
		{api.PathGroupsSeek, `{"group":"g","topic":"t","to":"here"}`, "to"},
		{api.PathGroupsSeek, `{"group":"g","topic":"t","to":1}`, "to"},
		{api.PathGroupsSeek, `{"group":"g","topic":"t","to":"end","dry_run":0}`, "dry_run"},
		{api.PathBackupRead, `{"backup":"b","offset":0,"bytes":4194305}`, "bytes"},
	} {
		a := s.post(row.path, row.body, "Authorization", "Bearer root")
		message, _ := a.json["message"].(string)
		if a.status != 400 || a.field() != row.field || !strings.Contains(message, fmt.Sprintf("%q", row.field)) {
			t.Errorf("%s %s: %d %s, want field %q", row.path, row.body, a.status, a.body, row.field)
		}
	}
}

// TestLegalOddities: requests that look wrong and are not.
func TestLegalOddities(t *testing.T) {
	s := start(t, func(c *Config) { c.AdminToken = "root" })
	name255 := strings.Repeat("é", 127) + "x"
	message := base64.StdEncoding.EncodeToString(make([]byte, api.MessageMax-1))
	for _, row := range []struct{ path, body string }{
		{api.PathPublish, `{"topic":"../../etc/passwd","value":""}`},
		{api.PathPublish, `{"topic":"a/b\\c\"d","value":""}`},
		{api.PathPublish, `{"topic":" ","value":""}`},
		{api.PathPublish, `{"topic":"\ud83d\ude00","value":""}`},
		{api.PathPublish, `{"topic":"😀","value":""}`},
		{api.PathPublish, `{"topic":"` + name255 + `","value":"","request_id":"` + name255 + `"}`},
		{api.PathPublish, `{"topi\u0063":"t","valu\u0065":"\u0041A\u003d="}`},
		{api.PathPublish, `{"topic":"t","value":"\/\/\/\/"}`},
		{api.PathPublish, `{"topic":"t","value":"","request_id":"\u0000\n"}`},
		{api.PathPublish, "\t\r\n {\"topic\"\n:\t\"t\" , \"value\" : \"\"}\r\n"},
		{api.PathPublish, `{"topic":"t","key":"AA==","value":"` + message + `"}`},
		{api.PathPublishBatch, `{"topic":"t","messages":[` + strings.Repeat(`{"value":""},`, 31) + `{"value":""}]}`},
		{api.PathFetch, `{"topic":"t","offset":9007199254740991,"limit":1000,"wait_ms":0}`},
		{api.PathFetch, `{"topic":"t","from_ms":281474976710655}`},
		{api.PathTopicsConfigure, `{"topic":"t"}`},
		{api.PathTopicsConfigure, `{"topic":"t","retention_ms":1,"retention_bytes":9007199254740991,"retention_records":null,"reset":true}`},
		{api.PathTopicsConfigure, `{"reset" : false , "retention_m\u0073" : null, "topic":"t"}`},
		{api.PathTopicsList, ``},
		{api.PathTopicsList, `{"prefix":""}`},
		{api.PathTopicsList, `{"prefix":"` + name255 + `","limit":1000}`},
		{api.PathTopicsList, `{"cursor":"dHQ"}`},
		{api.PathGroupsList, ``},
		{api.PathGroupsList, `{"cursor":"Z2cAdA"}`},
		{api.PathGroupsSeek, `{"group":"g","topic":"t","to":"\u0065nd"}`},
		{api.PathGroupsSeek, `{"group":"g","topic":"t","time_ms":0,"dry_run":true}`},
		{api.PathTopicsDelete, `{"topic":"a/b\\c\"d"}`},
	} {
		if a := s.post(row.path, row.body, "Authorization", "Bearer root"); a.status != 200 {
			t.Errorf("%s %.100s: %d %s", row.path, row.body, a.status, a.body)
		}
	}
	for _, body := range []string{
		`{"topic":"t","key":"AAA=","value":"` + message + `"}`,
		`{"topic":"t","key":"\u0041AA=","value":"` + message + `"}`,
	} {
		if a := s.post(api.PathPublish, body); a.status != 413 || a.code() != "too_large" || a.field() != "value" {
			t.Errorf("%d %s, want 413", a.status, a.body)
		}
	}
	body := `{"topic":"t","messages":[{"value":""},{"key":"AAA=","value":"` + message + `"}]}`
	if a := s.post(api.PathPublishBatch, body); a.status != 413 || a.field() != "messages[1].value" {
		t.Errorf("batch: %d %s, want 413", a.status, a.body)
	}
}
