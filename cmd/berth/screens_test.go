package main

import (
	"bytes"
	"context"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"

	"berth/internal/lib/golden"
)

const (
	recordings = "testdata/screens"            // written by make day RECORD=1
	dayFiles   = "../../e2e/day/testdata/home" // the files that the recorded commands read
)

// screenMain is Main on a terminal of 80 columns without colours, at the time that recordings give their
// last answer.
func screenMain() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	a := fromProcess()
	a.now = func() time.Time { return time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC) }
	a.outTerm = screen{terminal: true, width: 80}
	a.errTerm = a.outTerm
	return run(ctx, a, os.Args[1:])
}

// Pages for users show screens. Each is the output of this program today for the answers of a server that were
// recorded on a real cluster; no page shows another one.
func TestScreensOfTheGuideAreDocumented(t *testing.T) {
	t.Parallel()
	shown := map[string]bool{}
	for _, file := range glob(t, recordings, "*.txtar") {
		r := readRecording(t, file)
		got := r.render(t)
		if golden.Updating() {
			r.update(t, got)
		} else if got != r.screen() {
			t.Errorf("%s: $ %s shows\n%s\nwant (make generate, if this is better):\n%s", file, r.command, got, r.screen())
		}
		shown[r.command] = r.documented(t, got)
	}
	for command, found := range shown {
		if !found {
			t.Errorf("no page shows the recorded screen of %q", command)
		}
	}
	for _, page := range pages(t) {
		for _, m := range screenBlock.FindAllStringSubmatch(textOf(t, page), -1) {
			if _, recorded := shown[m[1]]; !recorded {
				t.Errorf("%s shows a screen of %q, which is not recorded", page, m[1])
			}
		}
	}
}

// screenBlock is a screen on a page: a command after the prompt, and its output.
var screenBlock = regexp.MustCompile("(?m)^```console\n\\$ (.*)\n((?s:.*?))^```\n")

func pages(t *testing.T) []string {
	t.Helper()
	return append(glob(t, guidePages, "*.md"), glob(t, operatePages, "*.md")...)
}

// recording is the answers to one command.
type recording struct {
	file    string
	archive *txtar.Archive
	command string
	stop    *regexp.Regexp // Ctrl-C is pressed once this is on the screen; nil: never
}

func readRecording(t *testing.T, file string) *recording {
	t.Helper()
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	r := &recording{file: file, archive: archive}
	for line := range strings.Lines(string(archive.Comment)) {
		line = strings.TrimSuffix(line, "\n")
		if text, ok := strings.CutPrefix(line, "$ "); ok {
			r.command = text
		}
		if text, ok := strings.CutPrefix(line, "interrupted at: "); ok {
			r.stop = regexp.MustCompile(text)
		}
	}
	if r.command == "" {
		t.Fatalf("%s has no line with the prompt and a command", file)
	}
	return r
}

func (r *recording) section(name string) string {
	for _, f := range r.archive.Files {
		if f.Name == name {
			return string(f.Data)
		}
	}
	return ""
}

func (r *recording) screen() string { return r.section("screen") }

// update replaces the screen of the recording.
func (r *recording) update(t *testing.T, screen string) {
	t.Helper()
	r.archive.Files = slices.DeleteFunc(r.archive.Files, func(f txtar.File) bool { return f.Name == "screen" })
	r.archive.Files = append(r.archive.Files, txtar.File{Name: "screen", Data: []byte(screen)})
	if err := os.WriteFile(r.file, txtar.Format(r.archive), 0o600); err != nil {
		t.Fatal(err)
	}
}

// documented reports whether a page shows the screen. An update corrects the pages that show another one.
func (r *recording) documented(t *testing.T, screen string) (found bool) {
	t.Helper()
	for _, page := range pages(t) {
		text := textOf(t, page)
		for _, m := range screenBlock.FindAllStringSubmatch(text, -1) {
			if m[1] != r.command {
				continue
			}
			found = true
			if m[2] != screen && golden.Updating() {
				text = strings.Replace(text, m[0], "```console\n$ "+r.command+"\n"+screen+"```\n", 1)
				if err := os.WriteFile(page, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			} else if m[2] != screen {
				t.Errorf("%s: $ %s shows\n%s\nbut the page has (make generate corrects it)\n%s", page, r.command, screen, m[2])
			}
		}
	}
	return found
}

// render runs the command against the recorded answers and returns the screen at its end.
func (r *recording) render(t *testing.T) string {
	t.Helper()
	script := &scripted{answers: map[string][]answer{}, holds: true}
	for line := range strings.Lines(r.section("routes")) {
		f := strings.Fields(line)
		status, err := strconv.Atoi(f[2])
		if err != nil {
			t.Fatalf("%s: %q", r.file, line)
		}
		script.answers[f[0]+" "+f[1]] = append(script.answers[f[0]+" "+f[1]],
			answer{status: status, kind: kindOf(f[3]), body: r.section(f[3])})
	}
	server := httptest.NewServer(script)
	defer func() {
		server.CloseClientConnections()
		server.Close()
	}()
	folder := t.TempDir()
	if err := os.CopyFS(folder, os.DirFS(dayFiles)); err != nil {
		t.Fatal(err)
	}
	args := words(strings.TrimPrefix(r.command, "berth "))
	cmd := exec.Command("berth-screen", args...) // TestMain has put it into PATH
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "BERTH_URL="+server.URL, "BERTH_TOKEN="+adminToken, "XDG_CONFIG_HOME="+folder,
		"GORACE=atexit_sleep_ms=20")
	out := &interrupting{cmd: cmd, stop: r.stop}
	cmd.Stdout, cmd.Stderr = out, out // one stream, as on a terminal
	// The exit code is not on the screen: that of a failed job is 1, of an interrupt another.
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return grouped(onScreen(out.String()))
}

// labelled is a line of one of several logs.
var labelled = regexp.MustCompile(`^(\S+( \d+)?) +\| `)

// grouped sorts lines of several logs that follow each other by the label of their log: the logs are read at the
// same time, so their order varies. Lines of one log keep their order.
func grouped(text string) string {
	lines := strings.SplitAfter(text, "\n")
	for from := 0; from < len(lines); from++ {
		to := from
		for to < len(lines) && labelled.MatchString(lines[to]) {
			to++
		}
		slices.SortStableFunc(lines[from:to], func(a, b string) int {
			return strings.Compare(labelled.FindStringSubmatch(a)[1], labelled.FindStringSubmatch(b)[1])
		})
		from = max(from, to-1)
	}
	return strings.Join(lines, "")
}

// words splits a command line at blanks outside of single quotes.
func words(line string) []string {
	var out []string
	for _, w := range regexp.MustCompile(`'[^']*'|\S+`).FindAllString(line, -1) {
		out = append(out, strings.Trim(w, "'"))
	}
	return out
}

// interrupting is the output of a command that gets a Ctrl-C at a text.
type interrupting struct {
	cmd  *exec.Cmd
	stop *regexp.Regexp

	mu   sync.Mutex
	text bytes.Buffer
}

func (w *interrupting) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text.Write(p)
	if w.stop != nil && w.stop.Match(w.text.Bytes()) {
		w.stop = nil
		w.text.WriteString("^C") // as the terminal does
		return len(p), w.cmd.Process.Signal(os.Interrupt)
	}
	return len(p), nil
}

func (w *interrupting) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// onScreen returns the screen of a terminal at the end of a text: lines that were drawn and erased are gone.
func onScreen(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if at := strings.LastIndex(line, eraseLine); at >= 0 {
			line = line[at+len(eraseLine):]
		}
		b.WriteString(line)
	}
	return b.String()
}

// A screen of the guide is drawn as a terminal draws it, with the lines of each log together.
func TestErasedLinesAreNotOnTheScreen(t *testing.T) {
	t.Parallel()
	if got := onScreen("a\n\r\x1b[2Krunning\r\x1b[2Kb\n\r\x1b[2Kx\r\x1b[2K"); got != "a\nb\n" {
		t.Errorf("got %q", got)
	}
	if got := grouped("x\nb | 1\na | 2\nb | 0\ny\nb | 3\n"); got != "x\na | 2\nb | 1\nb | 0\ny\nb | 3\n" {
		t.Errorf("got %q", got)
	}
	if got, want := words(`logs -f 'sweep[2]' x`), []string{"logs", "-f", "sweep[2]", "x"}; !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}
