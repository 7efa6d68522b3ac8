package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// probe builds a static program, and returns options of an image with it.
func probe(t *testing.T) options {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "probe")
	build := exec.Command("go", "build", "-o", program, "./testdata/probe")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	certs := filepath.Join(dir, "certs")
	if err := os.WriteFile(certs, []byte("authorities"), 0o600); err != nil {
		t.Fatal(err)
	}
	text := filepath.Join(dir, "NOTICE")
	if err := os.WriteFile(text, []byte("licences"), 0o600); err != nil {
		t.Fatal(err)
	}
	return options{
		tag: fmt.Sprintf("berth-image-test/probe:%d", os.Getpid()), arch: runtime.GOARCH, version: "1.2.3", revision: "abc", certs: certs,
		out: filepath.Join(dir, "image.tar"), programs: []string{program},
		texts: []string{text},
	}
}

// make1 makes an image and returns its bytes.
func make1(t *testing.T, o options, epoch string) []byte {
	t.Helper()
	if err := run(o, epoch); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(o.out)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestEqualInputGivesEqualImages(t *testing.T) {
	t.Parallel()
	o := probe(t)
	first := make1(t, o, "1700000000")
	if !bytes.Equal(first, make1(t, o, "1700000000")) {
		t.Error("two runs give different images")
	}
	if bytes.Equal(first, make1(t, o, "1700000001")) {
		t.Error("an image of another time is equal: the comparison compares nothing")
	}
}

// The program runs as a user without a name and without rights, and can write where its state belongs.
func TestTheProgramOfAnImageRunsWithoutRights(t *testing.T) {
	t.Parallel()
	o := probe(t)
	make1(t, o, "1700000000")
	docker := func(args ...string) string {
		t.Helper()
		out, err := exec.Command("docker", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("docker %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	docker("load", "--input", o.out)
	t.Cleanup(func() { _ = exec.Command("docker", "image", "rm", "--force", o.tag).Run() })
	const hardened = "--cap-drop=ALL --network=none --security-opt=no-new-privileges"
	out := docker(append(strings.Fields("run --rm "+hardened), o.tag)...)
	for _, want := range []string{
		"user 65532 65532 home /var/lib/berth", "write /tmp/x true", "write /var/lib/berth/x true", "write /usr/bin/x false",
		"certificates authorities <nil>", "notice licences <nil>", "known true <nil>",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the program prints\n%s\nwant %q", out, want)
		}
	}
	if out := docker(append(strings.Fields("run --rm --read-only "+hardened), o.tag)...); !strings.Contains(out, "write /tmp/x false") {
		t.Errorf("with a read-only root, the program prints\n%s", out)
	}
	labels := docker("image", "inspect", "--format", "{{json .Config.Labels}} {{.Created}}", o.tag)
	for _, want := range []string{`"org.opencontainers.image.version":"1.2.3"`, `"org.opencontainers.image.revision":"abc"`, "2023-11-14T22:13:20Z"} {
		if !strings.Contains(labels, want) {
			t.Errorf("the image has %s, want %s", labels, want)
		}
	}
}

func TestFaultsLeaveNoImage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	sound := options{tag: "a/b:1", arch: "amd64", out: filepath.Join(dir, "image.tar"), programs: []string{"/none"}}
	for want, change := range map[string]func(*options) string{
		"seconds since 1970":   func(*options) string { return "today" },
		"-tag, -arch, -out":    func(o *options) string { o.arch = ""; return "1" },
		"repository can only":  func(o *options) string { o.tag = "A B"; return "1" },
		"no such file":         func(*options) string { return "1" },
		"at least one program": func(o *options) string { o.programs = nil; return "1" },
	} {
		o := sound
		epoch := change(&o)
		if err := run(o, epoch); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		if _, err := os.Stat(o.out); !os.IsNotExist(err) {
			t.Errorf("%s: a file is left: %v", want, err)
		}
	}
}
