package e2e_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"berth"
	"berth/activities/node/runtimetest"
	apiclient "berth/api/client"
	"berth/internal/lib/sbatch"
	"berth/wire"
)

// batchScript is a script of Slurm for two nodes. Its folder has the file that the tasks read.
const batchScript = `#!/bin/sh
#SBATCH --job-name=batch --nodes=2 --ntasks-per-node=2 --mem=64M --time=5 --export=GREETING=hello
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
[ "$head" = "$MASTER_ADDR" ] || exit 3
[ "$SLURM_SUBMIT_DIR" = /workspace ] || exit 4
srun --kill-on-bad-exit=1 sh -c 'echo "$GREETING $(cat data.txt) $SLURM_PROCID of $SLURM_NTASKS on $SLURM_NODEID: $*"' task "$@"
`

// runsBatchScripts runs a script of Slurm, as berth sbatch translates it, in real containers
// of two members.
func runsBatchScripts(t *testing.T, s *stack) {
	s.joinDocker(t, "b0", "b1")
	script, err := sbatch.Parse("batch.sh", batchScript)
	if err != nil {
		t.Fatal(err)
	}
	folder := s.upload(t, map[string]string{"data.txt": "world"})
	r := sbatch.Translate(script, sbatch.Settings{Args: []string{"a b"}, Image: shellImage(t), Folder: string(folder)})
	if len(r.Refused)+len(r.Wrong) > 0 {
		t.Fatalf("findings: %+v %+v", r.Refused, r.Wrong)
	}
	job := r.Job
	job.Resources.CPUs = jobSpec("").Resources.CPUs
	job.Placement.Labels = map[string]string{"engine": "docker"}
	id := s.submit(t, job)
	s.ends(t, id, berth.Succeeded)
	var printed []string
	for member := range job.Members {
		err := s.api.Logs(t.Context(), id, apiclient.LogsQuery{Member: member}, func(l wire.LogLine) error {
			printed = append(printed, l.Text)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(printed)
	want := []string{"hello world 0 of 4 on 0: a b", "hello world 1 of 4 on 0: a b", "hello world 2 of 4 on 1: a b", "hello world 3 of 4 on 1: a b"}
	if diff := cmp.Diff(want, printed); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
}

// shellImage loads an image with the shell of this machine, and the programs that the preamble
// and the script call. No registry is needed.
func shellImage(t *testing.T) string {
	t.Helper()
	files := map[string]string{} // path in the image: path here
	for _, program := range []string{"sh", "cat", "chmod", "head", "mktemp", "sed", "tr"} {
		found, err := exec.LookPath(program)
		if err != nil {
			t.Fatal(err)
		}
		files["bin/"+program] = found
		out, err := exec.CommandContext(t.Context(), "ldd", found).Output()
		if err != nil {
			t.Fatalf("ldd %s: %v", found, err)
		}
		for _, library := range regexp.MustCompile(`/\S+`).FindAllString(string(out), -1) {
			files[strings.TrimPrefix(library, "/")] = library
		}
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	add := func(h tar.Header, content []byte) {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	add(tar.Header{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777}, nil)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		here, err := filepath.EvalSymlinks(files[name])
		if err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(here)
		if err != nil {
			t.Fatal(err)
		}
		add(tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(len(content))}, content)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	packed, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, packed)
	if err != nil {
		t.Fatal(err)
	}
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy() // the image's own must not change
	file.OS, file.Architecture, file.Config.Env = "linux", runtime.GOARCH, []string{"PATH=/bin"}
	if img, err = mutate.ConfigFile(img, file); err != nil {
		t.Fatal(err)
	}
	ref := fmt.Sprintf("berth-testshell:%x", sha256.Sum256(layer.Bytes()))[:len("berth-testshell:")+16]
	runtimetest.Load(t, "", ref, img)
	return ref
}
