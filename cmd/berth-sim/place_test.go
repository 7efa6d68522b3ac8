package main

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/lib/golden"
)

// sim runs the program and returns what it printed.
func sim(args ...string) (string, error) {
	var out bytes.Buffer
	cmd := command()
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := cmd.Execute()
	return out.String(), err
}

// place runs berth-sim place and returns what it printed and wrote.
func place(t *testing.T, args ...string) (printed, written string) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out.csv")
	printed, err := sim(append([]string{"place", "--out", out}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return printed, string(b)
}

func TestPlaceSaysWhatItPlacedWhere(t *testing.T) {
	t.Parallel()
	printed, written := place(t, "--nodes", "testdata/nodes.csv", "--arrivals", "testdata/arrivals.csv", "--mix", "testdata/mix.csv")
	got := printed + "\n" + written
	golden.Check(t, "testdata/placed.txt", got)
}

// TestAMixNeedsNoModels checks that a mix without the column gpu_spec is one whose requests may use
// any model.
func TestAMixNeedsNoModels(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	with, without := filepath.Join(dir, "with.csv"), filepath.Join(dir, "without.csv")
	write(t, with, "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\na,4000,8192,1,500,\nb,8000,8192,2,1000,\n")
	write(t, without, "name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,4000,8192,1,500\nb,8000,8192,2,1000\n")
	args := []string{"--nodes", "testdata/nodes.csv", "--arrivals", "testdata/arrivals.csv", "--mix"}
	_, want := place(t, append(args, with)...)
	_, got := place(t, append(args, without)...)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-with the empty column +without it):\n%s", diff)
	}
	// Arrivals need the column: without it, bound jobs would go to any machine.
	arrivals := filepath.Join(dir, "arrivals.csv")
	write(t, arrivals, "pod,cpu_milli,memory_mib,num_gpu,gpu_milli\na,4000,8192,1,500\n")
	out := filepath.Join(dir, "out.csv")
	_, err := sim("place", "--nodes", "testdata/nodes.csv", "--arrivals", arrivals, "--out", out)
	if err == nil || !strings.Contains(err.Error(), "no column gpu_spec") {
		t.Errorf("arrivals without the column: %v", err)
	}
}

func TestCompressedArrivalsAreTheSame(t *testing.T) {
	t.Parallel()
	_, plain := place(t, "--nodes", "testdata/nodes.csv", "--arrivals", "testdata/arrivals.csv")
	_, compressed := place(t, "--nodes", "testdata/nodes.csv", "--arrivals", "testdata/arrivals.csv.gz")
	if diff := cmp.Diff(plain, compressed); diff != "" {
		t.Errorf("(-plain +compressed):\n%s", diff)
	}
}

func TestShuffleSeedDecidesTheOrder(t *testing.T) {
	t.Parallel()
	args := []string{"--nodes", "testdata/nodes.csv", "--arrivals", "testdata/arrivals.csv"}
	_, given := place(t, args...)
	_, one := place(t, append(args, "--shuffle-seed", "1")...)
	_, again := place(t, append(args, "--shuffle-seed", "1")...)
	_, zero := place(t, append(args, "--shuffle-seed", "0")...)
	if one != again {
		t.Error("one seed gives two results")
	}
	pods := func(s string) []string {
		var names []string
		for _, line := range strings.Split(strings.TrimSpace(s), "\n")[1:] {
			names = append(names, line[:strings.IndexByte(line, ',')])
		}
		return names
	}
	if slices.Equal(pods(given), pods(one)) || slices.Equal(pods(given), pods(zero)) || slices.Equal(pods(one), pods(zero)) {
		t.Error("seeds do not change the order")
	}
	a, b := slices.Sorted(slices.Values(pods(given))), slices.Sorted(slices.Values(pods(one)))
	if !slices.Equal(a, b) {
		t.Errorf("the shuffle changed who arrives: %v, %v", a, b)
	}
}

// TestNothingIsOvercommitted replays what was written over random arrivals, by
// books of its own.
func TestNothingIsOvercommitted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var nodes, arrivals strings.Builder
	nodes.WriteString("sn,cpu_milli,memory_mib,gpu,model\n")
	arrivals.WriteString("seq,pod,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n")
	r := rand.New(rand.NewPCG(7, 7))
	for i := range 30 {
		fmt.Fprintf(&nodes, "n%d,%d,%d,%d,%s\n", i, 16000*(1+r.IntN(6)), 65536*(1+r.IntN(6)), r.IntN(9), []string{"A", "B"}[r.IntN(2)])
	}
	for i := range 600 {
		gpus, milli := r.IntN(3), 1000
		if gpus == 1 && r.IntN(2) == 0 {
			milli = 1 + r.IntN(1000)
		}
		fmt.Fprintf(&arrivals, "%d,p%d,%d,%d,%d,%d,%s\n", i, i, 1000*r.IntN(16), 1024*r.IntN(64), gpus, milli, []string{"", "A", "A|B"}[r.IntN(3)])
	}
	n, a := filepath.Join(dir, "nodes.csv"), filepath.Join(dir, "arrivals.csv")
	write(t, n, nodes.String())
	write(t, a, arrivals.String())
	_, written := place(t, "--nodes", n, "--arrivals", a)
	checkPlaced(t, rows(t, nodes.String()), rows(t, arrivals.String()), rows(t, written))
}

type books struct {
	cpu, memory int
	gpus        []int
	model       string
}

func checkPlaced(t *testing.T, nodes, arrivals, placed [][]string) {
	t.Helper()
	number := func(s string) int {
		v, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	left := map[string]*books{}
	for _, n := range nodes {
		left[n[0]] = &books{number(n[1]), number(n[2]), slices.Repeat([]int{1000}, number(n[3])), n[4]}
	}
	if len(placed) != len(arrivals) {
		t.Fatalf("%d arrivals, %d rows", len(arrivals), len(placed))
	}
	somewhere := 0
	for i, a := range arrivals {
		p := placed[i]
		if p[0] != a[1] {
			t.Fatalf("row %d is of %s, want %s", i, p[0], a[1])
		}
		if p[1] == "" {
			continue
		}
		somewhere++
		b := left[p[1]]
		b.cpu -= number(a[2])
		b.memory -= number(a[3])
		var devices []string
		if p[2] != "" {
			devices = strings.Split(p[2], "-")
		}
		if len(devices) != number(a[4]) || len(devices) > 0 && a[6] != "" && !slices.Contains(strings.Split(a[6], "|"), b.model) {
			t.Fatalf("%v went to %v, a machine of %s", a, p, b.model)
		}
		for _, d := range devices {
			b.gpus[number(d)] -= number(a[5])
		}
		if b.cpu < 0 || b.memory < 0 || slices.ContainsFunc(b.gpus, func(m int) bool { return m < 0 }) {
			t.Fatalf("%v overcommits %s: %+v", a, p[1], *b)
		}
	}
	if somewhere < 100 {
		t.Fatalf("only %d were placed", somewhere)
	}
}

func rows(t *testing.T, text string) [][]string {
	t.Helper()
	list, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	return list[1:]
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestBadFilesAreNamedWithLineAndWhatIsAllowed(t *testing.T) {
	t.Parallel()
	const nodes, pods = "sn,cpu_milli,memory_mib,gpu,model\n", "seq,pod,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
	for name, c := range map[string]struct{ nodes, arrivals, want string }{
		"empty file":        {"", pods, "nodes.csv: empty: the first line names the columns sn,"},
		"only a header":     {nodes, pods, "nodes.csv: no rows"},
		"missing column":    {"sn,cpu_milli,memory_mib,model\n", pods, "nodes.csv:1: no column gpu: needed are sn,"},
		"negative":          {nodes + "a,-1,1,1,X\n", pods, `nodes.csv:2: cpu_milli "-1": allowed are whole numbers from 0`},
		"not a number":      {nodes + "a,1,1,1,X\nb,1,many,1,X\n", pods, `nodes.csv:3: memory_mib "many"`},
		"node twice":        {nodes + "a,1,1,1,X\na,1,1,1,X\n", pods, `nodes.csv:3: sn "a" appears twice`},
		"node without name": {nodes + ",1,1,1,X\n", pods, "nodes.csv:2: sn is empty"},
		"too few fields":    {nodes + "a,1\n", pods, "nodes.csv: record on line 2: wrong number of fields"},
		"no GPU share":      {nodes + "a,1,1,1,X\n", pods + "0,p,1,1,1,0,\n", "arrivals.csv:2: gpu_milli is 0 for 1 GPUs: allowed are 1 to 1000"},
		"share of several":  {nodes + "a,1,1,1,X\n", pods + "0,p,1,1,2,500,\n", "arrivals.csv:2: gpu_milli 500 for 2 GPUs: only one"},
		"more than one GPU": {nodes + "a,1,1,1,X\n", pods + "0,p,1,1,1,1001,\n", `gpu_milli "1001": allowed are whole numbers from 0 to 1000`},
		"pod twice":         {nodes + "a,1,1,1,X\n", pods + "0,p,1,1,0,0,\n1,p,1,1,0,0,\n", `arrivals.csv:3: pod "p" appears twice`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			n, a, out := filepath.Join(dir, "nodes.csv"), filepath.Join(dir, "arrivals.csv"), filepath.Join(dir, "out.csv")
			write(t, n, c.nodes)
			write(t, a, c.arrivals)
			_, err := sim("place", "--nodes", n, "--arrivals", a, "--out", out)
			if err == nil || !strings.Contains(err.Error(), c.want) || !errors.As(err, new(*usageError)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if left, _ := filepath.Glob(out + "*"); left != nil {
				t.Errorf("%v was written all the same", left)
			}
		})
	}
}

func TestMissingFlagsAndFilesAreSaidAtOnce(t *testing.T) {
	t.Parallel()
	_, err := sim("place")
	for _, name := range []string{"--nodes", "--arrivals", "--out"} {
		if err == nil || !strings.Contains(err.Error(), name+" is missing") {
			t.Errorf("got %v, want %s named", err, name)
		}
	}
	none := filepath.Join(t.TempDir(), "none.csv")
	if _, err := sim("place", "--nodes", none, "--arrivals", none, "--out", none); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v for a file that is not there", err)
	}
	broken := filepath.Join(t.TempDir(), "arrivals.csv.gz")
	write(t, broken, "seq,pod\n")
	if _, err := sim("place", "--nodes", "testdata/nodes.csv", "--arrivals", broken, "--out", none); err == nil || !strings.Contains(err.Error(), "arrivals.csv.gz: read as gzip") {
		t.Errorf("got %v for a file that is not compressed", err)
	}
	out := filepath.Join(t.TempDir(), "no", "folder", "out.csv")
	if _, err := sim("place", "--nodes", "testdata/nodes.csv", "--arrivals", "testdata/arrivals.csv", "--out", out); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v for a folder that is not there", err)
	}
}
