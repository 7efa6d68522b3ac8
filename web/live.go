package web

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"html"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"berth"
)

// liveEvery is the pause between two readings of a page for its streams. A reading is shared by all
// readers who see the same rows, so its cost is that of a scope, not of a reader.
const liveEvery = 2 * time.Second

// countsEvery is the pause for pages that count: the first page and the queue read a thousand waiting
// jobs for their figures.
const countsEvery = 10 * time.Second

// pauseOf is the age up to which a reading of a page is used again.
func pauseOf(path string) time.Duration {
	if path, _, _ := strings.Cut(path, "?"); path == "/" || path == "/queue" {
		return countsEvery
	}
	return liveEvery
}

// Bounds on streams: of one token, since a browser keeps one for each open page, and of this process.
const (
	streamsOfToken = 50
	streamsMost    = 1000
)

// boards are the last readings of pages, by page and scope of the reader.
type boards struct {
	site *Site

	mu      sync.Mutex
	all     map[boardKey]*board // those with streams
	streams map[string]int      // by token
	open    int
}

// boardKey names the rows that readers share: the rows of a page depend on the tenant, the role, and
// on the reader's name where the page asks for the reader's own.
type boardKey struct{ path, tenant, role, name string }

// noBoard is the key of streams that show no rows; its board is never read.
var noBoard boardKey

// board is one reading of a page.
type board struct {
	streams int // that show it; guarded by boards.mu

	mu     sync.Mutex // held during a reading, so that it is made once
	at     time.Time
	status int
	rows   map[string]string // HTML by the id of the row
}

func newBoards(s *Site) *boards {
	return &boards{site: s, all: map[boardKey]*board{}, streams: map[string]int{}}
}

// enter counts a stream of a token, or refuses it. A page whose address differs in anything is a board of
// its own, so a board lives only as long as its streams.
func (b *boards) enter(token string, key boardKey) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.streams[token] >= streamsOfToken || b.open >= streamsMost {
		return berth.Errorf(berth.CodeCapacity, "too many live pages are open; close some")
	}
	b.streams[token]++
	b.open++
	of := b.all[key]
	if of == nil {
		of = &board{}
		b.all[key] = of
	}
	of.streams++
	return nil
}

// leave ends the count of a stream, and drops the board of the last one.
func (b *boards) leave(token string, key boardKey) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open--
	if b.streams[token]--; b.streams[token] == 0 {
		delete(b.streams, token)
	}
	of := b.all[key]
	if of.streams--; of.streams == 0 {
		delete(b.all, key)
	}
}

// of returns the board of a key, which a stream has entered.
func (b *boards) of(key boardKey) *board {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all[key]
}

// read returns the rows of a page as its reader sees them, from a reading that is at most pauseOf
// old.
func (b *boards) read(r *http.Request, key boardKey) (rows map[string]string, status int) {
	of := b.of(key)
	of.mu.Lock()
	defer of.mu.Unlock()
	if time.Since(of.at) < pauseOf(key.path) {
		return of.rows, of.status
	}
	page, err := url.Parse(key.path)
	if err != nil {
		return nil, http.StatusBadRequest
	}
	ctx, cancel := context.WithTimeout(r.Context(), pageLimit)
	defer cancel()
	inner := r.Clone(context.WithValue(ctx, readingKey{}, true))
	inner.URL, inner.RequestURI = page, key.path
	w := &recorder{header: http.Header{}, status: http.StatusOK}
	b.site.live.ServeHTTP(w, inner)
	if w.status == http.StatusUnauthorized { // it is this reader's alone
		return nil, w.status
	}
	of.at, of.status, of.rows = time.Now(), w.status, nil
	if w.status == http.StatusOK {
		of.rows = liveRows(w.body.String())
	}
	return of.rows, of.status
}

// recordedMost is the greatest page in bytes that is read for its rows. A greater one stays as it was loaded.
const recordedMost = 4 << 20

// errRecorded reports that a page is greater than recordedMost.
var errRecorded = fmt.Errorf("the page has more than %d bytes", recordedMost)

// recorder keeps a page in memory, up to recordedMost bytes.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (r *recorder) Header() http.Header { return r.header }

// WriteHeader implements http.ResponseWriter.
func (r *recorder) WriteHeader(status int) { r.status = status }

// Write implements http.ResponseWriter. A page beyond recordedMost is no page: half a page has half rows.
func (r *recorder) Write(b []byte) (int, error) {
	if r.body.Len()+len(b) > recordedMost {
		r.status, r.body = http.StatusRequestEntityTooLarge, bytes.Buffer{}
		return 0, errRecorded
	}
	return r.body.Write(b)
}

// liveRow finds the elements of a page that a stream patches.
var liveRow = regexp.MustCompile(`<([a-z]+)[^<>]* data-live="([^"]*)"`)

// liveRows returns the elements of a page with a data-live, by its value. The pages are rendered by
// html/template, so that a value of a user contains no tag.
func liveRows(page string) map[string]string {
	rows := map[string]string{}
	for _, m := range liveRow.FindAllStringSubmatchIndex(page, -1) {
		tag, id := page[m[2]:m[3]], html.UnescapeString(page[m[4]:m[5]])
		if end := endOf(page[m[0]:], tag); end > 0 {
			rows[id] = page[m[0] : m[0]+end]
		}
	}
	return rows
}

// endOf returns the length of the element at the beginning of a text; 0 without an end.
func endOf(text, tag string) int {
	depth := 0
	for at := 0; ; {
		i := strings.IndexByte(text[at:], '<')
		if i < 0 {
			return 0
		}
		at += i + 1
		switch rest := text[at:]; {
		case strings.HasPrefix(rest, "/"+tag+">"):
			if depth--; depth == 0 {
				return at + len(tag) + 2
			}
		case strings.HasPrefix(rest, tag) && len(rest) > len(tag) && (rest[len(tag)] == ' ' || rest[len(tag)] == '>'):
			depth++
		}
	}
}

// age finds texts that change by the clock alone.
var age = regexp.MustCompile(`(<time class="ago"[^>]*>)[^<]*`)

// hasRows reports whether an address is that of a page with live rows. The table of routes decides, by the
// rules that serve the page: a list of refused texts would miss escapes such as %6c.
func (s *Site) hasRows(address string) bool {
	page, err := url.Parse(address)
	if err != nil {
		return false
	}
	_, pattern := s.live.Handler(&http.Request{Method: http.MethodGet, URL: page})
	return pattern != ""
}

// livePage streams the rows of a page: all at first, then the ones that have changed. It ends with the
// session, the server, or the reader's page.
func (s *Site) livePage(ctx context.Context, v *visit) (result, error) {
	path := localPath(v.query("of"))
	if !s.hasRows(path) {
		return result{}, berth.Errorf(berth.CodeInvalid, "%q is not a page with rows", clip(80, path))
	}
	p := v.page.Reader
	key := boardKey{path: path, tenant: string(p.Tenant), role: string(p.Role)}
	if u, err := url.Parse(path); err != nil || u.Path == "/" || strings.Contains(u.Query().Get("q"), "owner") {
		key.name = p.Name
	}
	if err := s.boards.enter(p.TokenID, key); err != nil {
		return result{}, err
	}
	defer s.boards.leave(p.TokenID, key)
	out := newEvents(v)
	sent := map[string]rowSum{}
	tick := time.NewTicker(liveEvery)
	defer tick.Stop()
	for {
		if _, err := s.reader(v.r, false); berth.CodeOf(err) == berth.CodeUnauthorized {
			return result{}, out.end("bye")
		}
		rows, status := s.boards.read(v.r, key)
		if status == http.StatusUnauthorized {
			return result{}, out.end("bye")
		}
		if err := out.send("rows", changedRows(rows, sent)); err != nil {
			return result{}, errWritten // the reader has left
		}
		select {
		case <-ctx.Done():
			return result{}, errWritten
		case <-s.Closing:
			return result{}, errWritten
		case <-tick.C:
		}
	}
}

// rowSum distinguishes the texts of a row: a stream that kept the texts would hold every page that it has sent.
type rowSum [sha256.Size]byte

// changedRows returns the rows that differ from the ones sent, notes them as sent, and forgets the rows that
// are no longer there. Without rows (the page could not be read) nothing is forgotten.
func changedRows(rows map[string]string, sent map[string]rowSum) map[string]string {
	changed := map[string]string{}
	for id, row := range rows {
		sum := rowSum(sha256.Sum256([]byte(age.ReplaceAllString(row, "$1"))))
		if was, ok := sent[id]; !ok || was != sum {
			changed[id], sent[id] = row, sum
		}
	}
	if rows != nil {
		maps.DeleteFunc(sent, func(id string, _ rowSum) bool { _, ok := rows[id]; return !ok })
	}
	return changed
}

// events is a stream of server-sent events.
type events struct {
	of      *http.Request
	w       http.ResponseWriter
	control *http.ResponseController
}

// newEvents begins the answer.
func newEvents(v *visit) *events {
	h := v.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no") // proxies must pass events on at once
	v.w.WriteHeader(http.StatusOK)
	return &events{v.r, v.w, http.NewResponseController(v.w)}
}

// send writes an event with a JSON document, or a sign of life in place of an empty one. The browser
// must take it within writeTime.
func (e *events) send(name string, data any) error { return e.sendAt(name, "", data) }

// sendAt is send with the position of the event, which a browser that connects again sends as Last-Event-ID.
func (e *events) sendAt(name, id string, data any) error {
	b, err := json.Marshal(data)
	if err != nil {
		return err
	}
	text := "event: " + name + "\ndata: " + string(b) + "\n\n"
	if string(b) == "{}" || string(b) == "null" {
		text = ":\n\n"
	} else if id != "" {
		text = "id: " + id + "\n" + text
	}
	_ = e.control.SetWriteDeadline(time.Now().Add(writeTime))
	if _, err := e.w.Write([]byte(text)); err != nil {
		return err
	}
	return e.control.Flush()
}

// end sends the last event. Its result is errWritten.
func (e *events) end(name string) error {
	_ = e.send(name, "end") // a browser that is gone needs none
	return errWritten
}
