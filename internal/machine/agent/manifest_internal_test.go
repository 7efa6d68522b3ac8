package agent

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/wire"
)

// FuzzManifest: a manifest is damaged, or each of its files is one file below the folder of the
// step, of its own objects, and no two files share a place.
func FuzzManifest(f *testing.F) {
	const job = "019ab3c4-0f2e-7c11-9b1d-5e02c7d3f9a2"
	point := wire.RestorePoint{Step: 7, Manifest: "t/j/checkpoints/step-7/manifest.json"}
	manifest := func(files ...wire.CheckpointFile) []byte {
		b, err := json.Marshal(wire.CheckpointManifest{Job: job, Step: 7, Files: files})
		if err != nil {
			f.Fatal(err)
		}
		return b
	}
	file := func(path string) wire.CheckpointFile {
		return wire.CheckpointFile{Path: path, Object: "t/j/checkpoints/step-7/file-000000", Bytes: 3, Mode: 0o4777}
	}
	f.Add(manifest(file("model.pt"), file("deep/er/opt.pt")))
	f.Add(manifest(file("a"), file("a")))
	f.Add(manifest(file("a"), file("a/b")))
	f.Add(append(manifest(file("a")), manifest(file("b"))...))
	f.Add(append(manifest(file("a")), '}'))
	for _, path := range []string{"../a", "/etc/passwd", "a//b", "a/../b", ".", "", "a\x00", `a\b`, strings.Repeat("x", 2000)} {
		f.Add(manifest(file(path)))
	}
	f.Add([]byte(`{"job":"` + job + `","step":7,"files":[{"path":"a","object":"t/j/checkpoints/step-7/../../other","bytes":1}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		m, err := readManifest(body, point, job, 0)
		if err != nil {
			if _, ok := errors.AsType[damage](err); !ok {
				t.Errorf("%v, which is no damage", err)
			}
			return
		}
		if !json.Valid(body) {
			t.Errorf("%q is no JSON document, but a manifest", body)
		}
		seen := map[string]bool{}
		for _, file := range m.Files {
			if !filepath.IsLocal(file.Path) || filepath.Clean(file.Path) != file.Path || strings.ContainsRune(file.Path, 0) {
				t.Errorf("a file is at %q", file.Path)
			}
			if seen[file.Path] {
				t.Errorf("two files are at %q", file.Path)
			}
			seen[file.Path] = true
			if filepath.Dir(file.Object) != "t/j/checkpoints/step-7" || file.Bytes < 0 {
				t.Errorf("%q is %d bytes of the object %q", file.Path, file.Bytes, file.Object)
			}
			if os.FileMode(file.Mode).Perm()&^0o777 != 0 {
				t.Errorf("%q has the mode %o", file.Path, file.Mode)
			}
		}
		again, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := readManifest(again, point, job, 0); err != nil {
			t.Errorf("%s is accepted, but not after a round: %v", body, err)
		}
	})
}
