package attacks_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
)

// attack is one line of the list of attacks.
type attack struct {
	number   int
	name     string
	expected string
	try      func(a *attempt)
	long     bool   // left out of make test
	gpu      string // for attacks on GPUs, the GPUs that the attack runs on
	open     string // why Berth does not refuse the attack yet; empty if Berth must refuse it
	covered  string // in place of try, the tests of an attack that a stack cannot try
}

// attempt is one run of an attack. saw and breach may be called concurrently.
type attempt struct {
	*field
	mu       sync.Mutex
	seen     []string
	breaches []string
}

// saw adds an entry to the column "seen".
func (a *attempt) saw(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen = append(a.seen, fmt.Sprintf(format, args...))
}

// breach records that a part of the attack was not refused.
func (a *attempt) breach(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.breaches = append(a.breaches, fmt.Sprintf(format, args...))
}

// refused records a breach unless the answer has one of these statuses.
func (a *attempt) refused(what string, got answer, want ...int) {
	for _, w := range want {
		if got.Status == w {
			a.saw("%s: %d", what, w)
			return
		}
	}
	a.breach("%s: %d %s, want %v", what, got.Status, got.clipped(), want)
}

// result is a line of the printed table.
type result struct {
	attack
	verdict string
	seen    string
}

func TestAttacks(t *testing.T) {
	f := newField(t)
	results := make([]result, len(attacks))
	for i, at := range attacks {
		results[i] = result{attack: at, verdict: "not run", seen: at.covered}
		if at.covered != "" {
			results[i].verdict = "tested elsewhere"
			continue
		}
		if at.long && !*all || *only != "" && !slices.Contains(strings.Split(*only, ","), fmt.Sprint(at.number)) {
			continue
		}
		name := fmt.Sprintf("%02d_%s", at.number, strings.ReplaceAll(at.name, " ", "_"))
		t.Run(name, func(t *testing.T) {
			a := &attempt{field: f.on(t)}
			results[i].verdict = "FAILED"
			defer func() { results[i].seen = strings.Join(a.seen, "; ") }()
			at.try(a)
			switch {
			case t.Failed():
			case at.open != "" && len(a.breaches) == 0:
				t.Errorf("attack %d is marked as open (%s), but it was refused: %s", at.number, at.open, a.seen)
			case at.open != "":
				a.seen, results[i].verdict = append(a.breaches, at.open), "OPEN"
			case len(a.breaches) > 0:
				t.Errorf("attack %d, %s: want %s; not refused:\n%s",
					at.number, at.name, at.expected, strings.Join(a.breaches, "\n"))
			default:
				results[i].verdict = "refused"
			}
		})
	}
	printTable(results)
}

// printTable writes the table to the standard output.
func printTable(results []result) {
	count := map[string]int{}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\n#\tattack\texpected\tverdict\tGPU\tseen")
	for _, r := range results {
		count[r.verdict]++
		seen := []rune(r.seen)
		if len(seen) > 160 {
			seen = append(seen[:159], '…')
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\n", r.number, r.name, r.expected, r.verdict, r.gpu, string(seen))
	}
	_ = w.Flush()
	fmt.Printf("\n%d attacks: %v\n", len(results), count)
}
