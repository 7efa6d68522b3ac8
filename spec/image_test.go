package spec_test

import (
	"strings"
	"testing"

	"github.com/distribution/reference"

	"berth/spec"
)

// Engines read references with this library. A name that Berth reads in another way could pass a
// rule that it breaks.
func TestImageNamesAreThoseOfTheEngine(t *testing.T) {
	t.Parallel()
	digest := "@sha256:" + strings.Repeat("a", 64)
	for _, ref := range []string{
		"busybox", "busybox:1", "library/busybox", "docker.io/busybox", "index.docker.io/busybox:1.36", "acme/tool",
		"docker.io/acme/tool:v1", "ghcr.io/acme/tool", "ghcr.io/acme/deep/tool:v2" + digest, "busybox" + digest,
		"localhost/tool", "localhost:5000/tool:x", "registry:5000/tool", "10.0.0.1/tool", "[fd00::1]:5000/tool:1",
		"Host/tool", "GHCR.io/acme/tool", "a.b/c", "a_b/c__d/e-f", "docker.io/library/busybox", "index.docker.io/a/b",
		"docker.io.evil.example/library/busybox", "docker.io/library/../x", "BusyBox", "ghcr.io/Acme/tool", "", "/", "a//b",
		"a/", "-a", "a..b/c", "ghcr.io", "ghcr.io/", "https://ghcr.io/acme", "user@ghcr.io/acme", strings.Repeat("f", 64),
		"docker.io:443/library/busybox", "tool:", "a:b:c", "a:b/c", "x/y:5000/z",
	} {
		want := ""
		if named, err := reference.ParseNormalizedNamed(ref); err == nil {
			want = named.Name()
		}
		got, ok := spec.ImageName(ref)
		switch {
		case want == "" && ok:
			// A digest or a tag that no engine takes: the name is still judged, and no pull succeeds.
			if name, _, _ := strings.Cut(ref, "@"); !strings.ContainsAny(ref, "@:") || name == "" {
				t.Errorf("%q is %s, and the engine takes no such reference", ref, got)
			}
		case got != want:
			t.Errorf("%q is %q, want %q", ref, got, want)
		}
	}
}

func TestAnEntryCoversWholePartsOfAName(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		entry, image string
		want         bool
	}{
		{"docker.io", "busybox", true},
		{"docker.io/library", "busybox:1", true},
		{"docker.io/library/busybox", "busybox", true},
		{"docker.io/library/busy", "busybox", false},
		{"docker.io/library", "acme/tool", false},
		{"docker.io", "docker.io.evil.example/library/busybox", false},
		{"docker.io", "docker.io:5000/library/busybox", false},
		{"ghcr.io/acme", "ghcr.io/acme/tool@sha256:" + strings.Repeat("b", 64), true},
		{"ghcr.io/acme", "ghcr.io/acme-evil/tool", false},
		{"ghcr.io/acme/tool", "ghcr.io/acme", false},
	} {
		name, ok := spec.ImageName(c.image)
		if got := ok && spec.ImageAllowed([]string{"quay.io", c.entry}, name); got != c.want {
			t.Errorf("%s covers %s: %t", c.entry, c.image, got)
		}
	}
}

func TestEntriesOfImagesNameARegistry(t *testing.T) {
	t.Parallel()
	good := []string{"docker.io", "ghcr.io/acme", "localhost:5000", "localhost/a/b", "10.0.0.1:5000/tool"}
	if faults := spec.CheckImageEntries("images", good); len(faults) > 0 {
		t.Errorf("faults %v", faults)
	}
	for _, entry := range []string{
		"", "busybox", "library/busybox", "ghcr.io/", "ghcr.io/acme/", "ghcr.io/Acme", "ghcr.io/acme/tool:v1", "ghcr.io/*",
		"index.docker.io/library", "https://ghcr.io", "ghcr.io/acme@sha256:" + strings.Repeat("c", 64), "a b.io",
	} {
		faults := spec.CheckImageEntries("images", []string{"ghcr.io", entry})
		if len(faults) != 1 || faults[0].Field != "images[1]" || faults[0].Allowed == "" {
			t.Errorf("%q: %v", entry, faults)
		}
	}
	if faults := spec.CheckImageEntries("images", make([]string, 101)); len(faults) == 0 || faults[0].Field != "images" {
		t.Errorf("101 entries: %v", faults)
	}
	if faults := (spec.Quota{Images: []string{}}).Validate(); len(faults) != 1 || faults[0].Field != "images" {
		t.Errorf("an empty list: %v", faults)
	}
}
