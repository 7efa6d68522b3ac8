package day

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"berth/e2e/rig"
)

var (
	programsFolder = flag.String("programs", "", "folder with the programs; empty: built from this repository")
	screensFolder  = flag.String("screens", "", "folder for the screens; empty: they are not kept")
	recordFolder   = flag.String("record", "", "folder for the recordings that the pages show; empty: none")
)

// played is the result of a scene.
type played struct {
	scene
	commands []string
	seen     map[string]string // the line of each answer that was seen
	screens  []string          // after each command
	forbid   string            // a text that never must be seen, and was
}

// BenchmarkANewUsersDay plays all scenes and prints, for each, the number of commands until its answer was on
// the screen. With the programs of this commit a scene without an answer, or with more commands than before, is
// an error. Earlier programs may fail to answer.
func BenchmarkANewUsersDay(b *testing.B) {
	// An interrupted day stops its cluster as well.
	ctx, stop := signal.NotifyContext(b.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	w, err := rig.OpenWorkshop() // PostgreSQL's user must reach the folder
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := w.Close(); err != nil {
			b.Error(err)
		}
	})
	programs := openPrograms(b, *programsFolder)
	home := filepath.Join(w.Dir, "home")
	if err := os.CopyFS(home, os.DirFS("testdata/home")); err != nil {
		b.Fatal(err)
	}
	stack := filepath.Join(w.Dir, "stack")
	if err := os.Mkdir(stack, 0o755); err != nil {
		b.Fatal(err)
	}
	c := startCluster(ctx, b, programs, stack)
	r := startRecorder(b, c.URL)
	t, err := openTerminal(ctx, home, "PATH="+programs+":/usr/bin:/bin", "BERTH_URL="+r.url,
		"BERTH_TOKEN="+c.Token)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := t.close(); err != nil {
			b.Error(err)
		}
	})
	var all []played
	for b.Loop() {
		for _, s := range scenes(c) {
			p, err := c.play(ctx, t, r, s)
			all = append(all, p)
			keepScreens(b, p)
			if err != nil {
				b.Fatalf("scene %q: %v\n%s", s.name, err, rig.Tail(filepath.Join(stack, "berth-dev.log")))
			}
			judge(b, p)
		}
	}
	b.Log("\n" + table(all))
	if *screensFolder != "" {
		if err := os.WriteFile(filepath.Join(*screensFolder, "commands.md"), []byte(counts(all)), 0o600); err != nil {
			b.Fatal(err)
		}
	}
}

// counts formats the numbers of commands as rows of the table in docs/guide/README.md.
func counts(all []played) string {
	var b strings.Builder
	for _, p := range all {
		text := fmt.Sprint(len(p.commands))
		if len(p.seen) < len(p.answers) {
			text += ", without the answer"
		}
		fmt.Fprintf(&b, "| %s | %s |\n", p.name, text)
	}
	return b.String()
}

// The guide shows the numbers of commands that this test holds.
func TestTheGuideHasTheCommandsOfEachScene(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/guide/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range scenes(&cluster{}) {
		if row := fmt.Sprintf("\n| %s | %d |", s.name, s.most); !strings.Contains(string(page), row) {
			t.Errorf("the guide lacks the row %s", strings.TrimSpace(row))
		}
	}
}

// play plays one scene. An error ends the day; a missing answer does not.
func (c *cluster) play(ctx context.Context, t *terminal, r *recorder, s scene) (played, error) {
	p := played{scene: s, seen: map[string]string{}}
	for _, command := range s.before {
		if err := c.operator(filepath.Join(c.dir, "..", "home"), command...); err != nil {
			return p, err
		}
	}
	for _, step := range s.steps {
		if !p.wants(step) {
			continue
		}
		if !step.extra {
			p.commands = append(p.commands, step.typed)
		}
		screen, err := t.run(ctx, step, r.reset)
		p.screens = append(p.screens, prompt+" "+step.typed+"\n"+screen)
		if err != nil {
			return p, err
		}
		if !step.extra {
			p.look(screen)
		}
		if step.keep != "" && *recordFolder != "" {
			if err := r.write(*recordFolder, step); err != nil {
				return p, err
			}
		}
	}
	return p, nil
}

// wants reports whether a person would still type the command.
func (p *played) wants(s step) bool {
	if s.extra {
		return *recordFolder != ""
	}
	for _, answer := range s.shows {
		if _, seen := p.seen[answer]; !seen {
			return true
		}
	}
	return len(s.shows) == 0
}

// look searches a screen for answers.
func (p *played) look(screen string) {
	for _, answer := range p.answers {
		if at := regexp.MustCompile(answer).FindStringIndex(screen); at != nil && p.seen[answer] == "" {
			from := strings.LastIndexByte(screen[:at[0]], '\n') + 1
			line, _, _ := strings.Cut(screen[from:], "\n")
			if line == "" { // (?m)^ may match at the end of the line before
				line = screen[at[0]:at[1]]
			}
			p.seen[answer] = strings.TrimSpace(line)
		}
	}
	if p.never != "" {
		if found := regexp.MustCompile(p.never).FindString(screen); found != "" {
			p.forbid = found
		}
	}
}

// run types a command, repeats it where its step says so, and returns its last screen. It calls before each time.
func (t *terminal) run(ctx context.Context, s step, before func()) (string, error) {
	screen := ""
	once := func(ctx context.Context) error {
		before()
		if err := t.begin(ctx, s.typed); err != nil {
			return err
		}
		for _, text := range s.shown {
			if *programsFolder != "" {
				break // programs of another commit may not show it
			}
			seen := regexp.MustCompile(text)
			if err := t.await(ctx, text, seen.MatchString); err != nil {
				return err
			}
		}
		if s.stop != "" {
			stop := regexp.MustCompile(s.stop)
			if err := t.await(ctx, s.stop, stop.MatchString); err != nil {
				return err
			}
			if err := t.interrupt(ctx); err != nil {
				return err
			}
		}
		var err error
		if screen, err = t.end(ctx); err == nil && s.until != "" && !regexp.MustCompile(s.until).MatchString(screen) {
			err = fmt.Errorf("%s does not show %s", s.typed, s.until)
		}
		return err
	}
	if s.until == "" {
		return screen, once(ctx)
	}
	err := rig.Await(ctx, patience, once)
	return screen, err
}

// keepScreens writes the screens of a scene to the folder of -screens.
func keepScreens(b *testing.B, p played) {
	if *screensFolder == "" {
		return
	}
	if err := os.MkdirAll(*screensFolder, 0o755); err != nil {
		b.Fatal(err)
	}
	name := strings.Join(strings.FieldsFunc(p.name, func(r rune) bool { return r == ' ' || r == ',' }), "-")
	text := strings.Join(p.screens, "\n\n") + "\n"
	if err := os.WriteFile(filepath.Join(*screensFolder, name+".txt"), []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
}

// judge reports a scene that answers worse than it should. Programs of another commit are only measured.
func judge(b *testing.B, p played) {
	if *programsFolder != "" {
		return
	}
	for _, answer := range p.answers {
		if p.seen[answer] == "" {
			b.Errorf("scene %q: no screen shows %s\n%s", p.name, answer, strings.Join(p.screens, "\n"))
		}
	}
	if p.forbid != "" {
		b.Errorf("scene %q: a screen shows %q", p.name, p.forbid)
	}
	if len(p.commands) > p.most {
		b.Errorf("scene %q takes %d commands: %q; at most %d are allowed", p.name, len(p.commands), p.commands, p.most)
	}
}

// table formats the results: the scene, the number of commands, and the lines with the answers.
func table(all []played) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-38s %8s  %s\n", "SCENE", "COMMANDS", "ANSWER")
	for _, p := range all {
		var lines []string
		for _, answer := range p.answers {
			line := p.seen[answer]
			if line == "" {
				line = "NOT ANSWERED: " + answer
			}
			lines = append(lines, line)
		}
		if p.forbid != "" {
			lines = append(lines, "TOO MUCH: "+p.forbid)
		}
		fmt.Fprintf(&b, "%-38s %8d  %s\n", p.name, len(p.commands), strings.Join(lines, " | "))
		for _, command := range p.commands {
			fmt.Fprintf(&b, "%-38s %8s    %s %s\n", "", "", prompt, command)
		}
	}
	return b.String()
}
