package notify

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"berth/db"
)

// message returns a message of the given bodies.
func message(bodies ...string) db.ChannelMessage {
	m := db.ChannelMessage{Total: len(bodies)}
	for i, b := range bodies {
		m.First = append(m.First, db.StoredNotification{ID: int64(i), Body: b})
		var n struct{ Type string }
		_ = json.Unmarshal([]byte(b), &n)
		m.Counts = append(m.Counts, db.TypeCount{Type: n.Type, N: 1})
	}
	return m
}

const failedJob = `{"type": "job.failed", "timestamp": "2026-01-31T12:00:00Z", "data": {"id": "0193a1b2-c3d4-7000-8000-000000000001",
	"name": %q, "tenant": "vision", "status": "failed", "attempt": 3, "exit_code": 1,
	"reason": {"code": "exit_code", "message": %q}}}`

func TestNotificationsAreSentences(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		fmt.Sprintf(failedJob, "digits", "exit code 1"): "job digits (00000001) of tenant vision failed: exit code 1",
		`{"type": "job.failed", "data": {"id": "x", "name": "a", "tenant": "t", "dead_letter": true, "kind": "pipeline", "reason": {"code": "budget_spent"}}}`:                           "pipeline a (x) of tenant t failed and has no retries left: budget_spent",
		`{"type": "job.succeeded", "data": {"id": "x", "name": "a", "tenant": "t", "kind": "array"}}`:                                                                                    "array a (x) of tenant t succeeded",
		`{"type": "job.running", "data": {"id": "x", "tenant": "t"}}`:                                                                                                                    "job x (x) of tenant t is running",
		`{"type": "job.draining", "data": {"id": "x", "name": "a", "tenant": "t", "machine": "m1", "drain_reason": "new disk", "drain_deadline": "2026-01-31T12:00:00Z"}}`:               "job a (x) of tenant t runs on machine m1, which is draining and is left at 2026-01-31T12:00:00Z: new disk",
		`{"type": "machine.lost", "data": {"machine": "m1", "pool": "default", "detail": "no renewal"}}`:                                                                                 "machine m1 is lost: no renewal",
		`{"type": "machine.draining", "data": {"machine": "m1", "detail": "new disk", "drain_deadline": "2026-01-31T12:00:00Z"}}`:                                                        "machine m1 is draining, jobs are moved away at 2026-01-31T12:00:00Z: new disk",
		`{"type": "gpu.unhealthy", "data": {"machine": "m1", "gpu": 3, "detail": "XID 79"}}`:                                                                                             "GPU 3 of machine m1 is unhealthy: XID 79",
		`{"type": "spend.stop_new", "data": {"tenant": "t", "level": "stop_new", "used": 90.5, "limit": 100}}`:                                                                           "tenant t has reached the level above which no machines are launched: $90.50 of $100.00",
		`{"type": "channel.test", "data": {"tenant": "t", "channel": "team", "by": "user:alice"}}`:                                                                                       "test of channel team of tenant t, sent by user:alice",
		"{\"type\": \"job.failed\", \"data\": {\"id\": \"x\", \"name\": \"a\\u202eb\\nc\\u0007\", \"tenant\": \"t\", \"reason\": {\"code\": \"oom\", \"message\": \" two\\n lines \"}}}": "job ab c (x) of tenant t failed: two lines",
	} {
		c, err := describe(message(body), "")
		if err != nil || len(c.lines) != 1 || c.lines[0].text() != want {
			t.Errorf("%s:\n got %+v, %v\nwant %s", body, c, err, want)
		}
	}
	long := strings.Repeat("ä", 400)
	if c, _ := describe(message(fmt.Sprintf(failedJob, "a", long)), ""); strings.Count(c.lines[0].text(),
		"ä") != maxText {
		t.Errorf("a long reason stays %d runes long", strings.Count(c.lines[0].text(), "ä"))
	}
}

func TestAChatMessageEscapesWhatUsersWrite(t *testing.T) {
	t.Parallel()
	c, err := describe(message(fmt.Sprintf(failedJob, "<!channel> a|b & c", "<https://evil.example|click>")),
		"https://berth.example/")
	if err != nil {
		t.Fatal(err)
	}
	body, err := chatBody(c)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]string
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	want := "job <https://berth.example/jobs/0193a1b2-c3d4-7000-8000-000000000001|&lt;!channel&gt; a/b &amp; c> " +
		"(00000001) of tenant vision failed: &lt;https://evil.example|click&gt;"
	if got["text"] != want || len(got) != 1 {
		t.Errorf("got  %s\nwant %s", got["text"], want)
	}
}

func TestTheLinkOfANameIsNotPutIntoAnotherWord(t *testing.T) {
	t.Parallel()
	c, err := describe(message(fmt.Sprintf(failedJob, "j", "x")), "https://berth.example")
	if err != nil {
		t.Fatal(err)
	}
	if got := chatLine(c.lines[0]); !strings.HasPrefix(got,
		"job <https://berth.example/jobs/0193a1b2-c3d4-7000-8000-000000000001|j> (") {
		t.Errorf("line %s", got)
	}
}

func TestManyNotificationsAreOneMessageWithCounts(t *testing.T) {
	t.Parallel()
	m := message(fmt.Sprintf(failedJob, "a", "x"), fmt.Sprintf(failedJob, "b", "y"))
	m.Total, m.Counts = 312, []db.TypeCount{{Type: "job.failed", N: 310}, {Type: "machine.lost", N: 2}}
	c, err := describe(m, "https://berth.example")
	if err != nil {
		t.Fatal(err)
	}
	subject, text := mailText(c)
	if subject != "[Berth] 310 x job.failed, 2 x machine.lost" || !strings.HasSuffix(text, "\nand 310 more\n") ||
		strings.Count(text, "https://berth.example/jobs/0193a1b2") != 2 {
		t.Errorf("mail %q:\n%s", subject, text)
	}
	chat, err := chatBody(c)
	if err != nil || !strings.Contains(chat, `310 x job.failed, 2 x machine.lost\njob `) || !strings.HasSuffix(chat,
		`and 310 more"}`) {
		t.Errorf("chat %s, %v", chat, err)
	}
	one, err := describe(message(fmt.Sprintf(failedJob, "a", "x")), "")
	if err != nil {
		t.Fatal(err)
	}
	if subject, _ := mailText(one); subject != "[Berth] job a (00000001) of tenant vision failed" {
		t.Errorf("subject of one: %s", subject)
	}
}

// Discord refuses messages of more than 2,000 characters, and a message that is refused would be repeated for a day.
func TestAChatMessageFitsIntoEveryChat(t *testing.T) {
	t.Parallel()
	var bodies []string
	for range 10 {
		bodies = append(bodies, fmt.Sprintf(failedJob, strings.Repeat("n", 63), strings.Repeat("&", 400)))
	}
	for n := range bodies {
		c, err := describe(message(bodies[:n+1]...), "https://berth.example")
		if err != nil {
			t.Fatal(err)
		}
		body, err := chatBody(c)
		var got map[string]string
		if err == nil {
			err = json.Unmarshal([]byte(body), &got)
		}
		if text := got["text"]; err != nil || len(text) > 2000 || !strings.Contains(text, "vision failed") ||
			n > 0 && !strings.HasSuffix(text, " more") {
			t.Errorf("%d lines: %d bytes, %v: %s", n+1, len(text), err, text)
		}
	}
	text := chatText("@everyone [click](https://evil.example)")
	if strings.Contains(text, "@everyone") || strings.Contains(text, "](") {
		t.Errorf("text %q", text)
	}
}

func TestAddressesOfMailServersAreChecked(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"smtp://mail.example.com": "", "smtps://me@mail.example.com:4650": "", "smtp://127.0.0.1:25/": "",
		"mail.example.com": "allowed: smtp://", "https://mail.example.com": "allowed: smtp://", "smtp://": "allowed: smtp://",
		"smtp://me:hunter2@mail.example.com": "contains a password", "smtp://mail.example.com:0": "1 to 65535",
		"smtp://mail.example.com/x": "allowed: smtp://", "smtp://h:hunter2@[": "allowed: smtp://",
	} {
		m, err := ParseServer(address)
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", address, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(),
			"hunter2")):
			t.Errorf("%s: %v", address, err)
		case want == "" && m.Plain != strings.Contains(address, "127.0.0.1"):
			t.Errorf("%s: plain %v", address, m.Plain)
		}
	}
	m := &Mailer{From: "berth@example.com"}
	if to := m.RefusedRecipient([]string{"a@EXAMPLE.com", "b@other.example"}); to != "b@other.example" ||
		m.Allowed() != "addresses in example.com" {
		t.Errorf("refused %q, allowed %s", to, m.Allowed())
	}
	for _, routed := range []string{"victim%evil.example@example.com", "evil.example!victim@example.com",
		`"a@evil.example"@example.com`} {
		if m.RefusedRecipient([]string{routed}) == "" {
			t.Errorf("mail is sent on by %s", routed)
		}
	}
	m.Domains = []string{"*"}
	if to := m.RefusedRecipient([]string{"b@other.example"}); to != "" {
		t.Errorf("refused %q", to)
	}
	for from, ok := range map[string]bool{"berth@example.com": true, "": false, "Berth <berth@example.com>": false} {
		if err := (&Mailer{From: from}).Check(); (err == nil) != ok {
			t.Errorf("sender %q: %v", from, err)
		}
	}
}
