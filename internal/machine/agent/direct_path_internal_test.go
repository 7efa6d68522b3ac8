package agent

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/spec"
	"berth/wire"
)

// pathClock is a path with a clock of its own and the longest random part.
func pathClock(log io.Writer) (p *storePath, pass func(time.Duration)) {
	at := time.Unix(1_000_000, 0)
	p = newStorePath(time.Minute, time.Hour, slog.New(slog.NewTextHandler(log, nil)))
	p.now, p.random = func() time.Time { return at }, func() float64 { return 1 }
	return p, func(d time.Duration) { at = at.Add(d) }
}

const (
	mebi = 1 << 20
	gibi = 1 << 30
)

// TestAPathThatBreaksLargeTransfersPausesThemAlone also checks that successes of small transfers change nothing.
func TestAPathThatBreaksLargeTransfersPausesThemAlone(t *testing.T) {
	t.Parallel()
	p, pass := pathClock(io.Discard)
	broken := errors.New("connection reset by peer")
	for round, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		for try := 1; try <= directTries; try++ {
			if p.pauses(gibi) {
				t.Fatalf("round %d: large transfers pause before %d failures", round, directTries)
			}
			if got := p.failed(gibi, broken); got != (try == directTries) {
				t.Fatalf("round %d: failure %d begins a pause: %t", round, try, got)
			}
			p.worked(mebi)
		}
		if p.pauses(mebi) || !p.pauses(gibi) || !p.pauses(2*gibi) {
			t.Fatalf("round %d: small transfers pause %t, large ones %t", round, p.pauses(mebi), p.pauses(gibi))
		}
		pass(want*time.Minute - time.Second)
		if !p.pauses(gibi) {
			t.Errorf("round %d: the pause is shorter than %d minutes", round, want)
		}
		pass(time.Second)
		if p.pauses(gibi) {
			t.Errorf("round %d: the pause is longer than %d minutes", round, want)
		}
	}
	p.worked(gibi)
	for range directTries {
		p.failed(gibi, broken)
	}
	pass(time.Minute)
	if p.pauses(gibi) {
		t.Error("a success of a large transfer has not made the pause short again")
	}
}

func TestAnUnusablePathPausesAllTransfersAtOnce(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	p, pass := pathClock(&log)
	unusable := errUnusable{errors.New("no route")}
	for _, want := range []time.Duration{1, 2, 4} {
		if !p.failed(gibi, unusable) || !p.pauses(1) {
			t.Fatal("small transfers do not pause")
		}
		p.failed(mebi, unusable) // one that began before the pause makes it no longer
		pass(want * time.Minute)
		if p.pauses(gibi) {
			t.Errorf("the pause is longer than %d minutes", want)
		}
	}
	if n := strings.Count(log.String(), "object store not usable"); n != 3 {
		t.Errorf("%d warnings, want one for each pause:\n%s", n, log.String())
	}
	p.worked(mebi)
	p.failed(mebi, unusable)
	pass(time.Minute)
	if p.pauses(mebi) {
		t.Error("a success has not made the pause short again")
	}
}

// TestPausesHaveARandomPart keeps machines from returning to a store at the same time.
func TestPausesHaveARandomPart(t *testing.T) {
	t.Parallel()
	p, pass := pathClock(io.Discard)
	p.random = func() float64 { return 0 }
	p.failed(1, errUnusable{errors.New("no route")})
	pass(30*time.Second - 1)
	if !p.pauses(1) {
		t.Error("the pause is shorter than a half")
	}
	pass(1)
	if p.pauses(1) {
		t.Error("the random part does not count")
	}
}

// TestFaultsOfContentPauseNoPath reports objects that are missing or of another content.
func TestFaultsOfContentPauseNoPath(t *testing.T) {
	t.Parallel()
	p, pass := pathClock(io.Discard)
	d := &directStore{path: p, log: slog.New(slog.DiscardHandler)}
	for range 100 {
		for _, key := range []string{"a", "b"} {
			_ = d.judge(key, mebi, errContent{errors.New("404 (NoSuchKey)")})
		}
		_ = d.doubt("c", "another sha256")
	}
	if p.pauses(gibi) {
		t.Error("the path pauses")
	}
	if !p.avoids("a") || !p.avoids("c") || p.avoids("d") {
		t.Errorf("avoided are a %t, c %t, d %t", p.avoids("a"), p.avoids("c"), p.avoids("d"))
	}
	pass(time.Hour)
	if p.avoids("a") {
		t.Error("an object is avoided longer than the longest pause")
	}
	if err := d.judge("e", mebi, errContent{errors.New("BadDigest")}); err == nil || p.avoids("e") {
		t.Errorf("the first fault of a content is not repeated: %v", err)
	}
	_ = d.judge("e", mebi, errContent{errors.New("BadDigest")})
	if err := d.judge("e", mebi, errContent{errors.New("BadDigest")}); err != nil || !p.avoids("e") {
		t.Errorf("the object does not go through the server: %v", err)
	}
	p.forget("e")
	if p.avoids("e") {
		t.Error("an object that was moved is still avoided")
	}
}

// TestAProxyWithoutATunnelIsFoundOutAtOnce dials a proxy that is away, and one that refuses.
func TestAProxyWithoutATunnelIsFoundOutAtOnce(t *testing.T) {
	t.Parallel()
	refusing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
	}))
	t.Cleanup(refusing.Close)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	away := "http://" + listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	for name, proxy := range map[string]string{"away": away, "refusing": refusing.URL} {
		d := newDirectStore(Config{Timing: Timing{}.withDefaults()}, nil, slog.New(slog.DiscardHandler))
		at, err := url.Parse(proxy)
		if err != nil {
			t.Fatal(err)
		}
		d.http.Transport.(*http.Transport).Proxy = http.ProxyURL(at)
		_, err = d.do(t.Context(), http.MethodGet, wire.ObjectAddress{URL: signedText}, nil, 0)
		if _, unusable := errors.AsType[errUnusable](err); !unusable || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", name, err)
		}
		d.close()
	}
}

// TestAnUnreadableFileIsNoFaultOfThePath stores a file that becomes shorter during its transfer.
func TestAnUnreadableFileIsNoFaultOfThePath(t *testing.T) {
	t.Parallel()
	store := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
	}))
	t.Cleanup(store.Close)
	f, err := os.OpenFile(filepath.Join(t.TempDir(), "x"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("short"); err != nil {
		t.Fatal(err)
	}
	d := newDirectStore(Config{Server: "http://127.0.0.1:1", Timing: Timing{}.withDefaults()}, nil,
		slog.New(slog.DiscardHandler))
	body := &hashed{f: f, size: 100, hash: sha256.New()}
	err = d.send(t.Context(), wire.ObjectAddress{URL: spec.Sensitive(store.URL)}, body, 0, body.size)
	if err == nil || body.fault() == nil || !strings.Contains(body.fault().Error(), "became shorter") {
		t.Errorf("sent with %v, the fault of the file is %v", err, body.fault())
	}
}
