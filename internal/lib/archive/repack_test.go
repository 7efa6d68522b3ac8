package archive_test

import (
	"archive/tar"
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/lib/archive"
)

func TestWhatAnEngineSendsBecomesAnArchive(t *testing.T) {
	t.Parallel()
	link := func(kind byte, name, target string) evil { return evil{name: name, target: target, kind: kind} }
	for _, c := range []struct {
		name string
		tar  []byte
		want map[string]string
		says string
	}{
		{"a folder", tarOf(t, evil{name: "model/", kind: tar.TypeDir, mode: 0o2755}, evil{name: "model/a", size: 2, mode: 0o4755}, evil{name: "model/d/", kind: tar.TypeDir},
			link(tar.TypeSymlink, "model/d/up", "../a"), link(tar.TypeLink, "model/d/again", "model/a")),
			map[string]string{"a*": "\x00\x00", "d/": "", "d/up": "->../a", "d/again": "->../a"}, ""},
		{"a file", tarOf(t, evil{name: "model.pt", size: 3}), map[string]string{"model.pt": "\x00\x00\x00"}, ""},
		{"an empty folder", tarOf(t, evil{name: "model/", kind: tar.TypeDir}), map[string]string{}, ""},
		{"a link out", tarOf(t, evil{name: "m/", kind: tar.TypeDir}, link(tar.TypeSymlink, "m/x", "../../etc")), nil, "leads out"},
		{"an absolute link", tarOf(t, evil{name: "m/", kind: tar.TypeDir}, link(tar.TypeSymlink, "m/x", "/etc")), nil, "relative targets"},
		{"two dots", tarOf(t, evil{name: "m/", kind: tar.TypeDir}, evil{name: "m/../../x"}), nil, "does not lie in"},
		{"a hard link out", tarOf(t, evil{name: "m/", kind: tar.TypeDir}, link(tar.TypeLink, "m/x", "etc/passwd")), nil, "lies elsewhere"},
		{"a device", tarOf(t, evil{name: "m/", kind: tar.TypeDir}, evil{name: "m/null", kind: tar.TypeChar}), nil, "device"},
		{"the workspace, with Berth's own folder", tarOf(t, evil{name: "w/", kind: tar.TypeDir}, evil{name: "w/.berth/", kind: tar.TypeDir}, evil{name: "w/.berth/progress", size: 9}, evil{name: "w/a", size: 1}),
			map[string]string{"a": "\x00"}, ""},
		{"cut off", tarOf(t, evil{name: "m", size: 2 << 20}), nil, "unexpected EOF"},
		{"too much", tarOf(t, evil{name: "m", size: 2000}), nil, "unpacks to more"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := archive.Default
			if c.name == "too much" {
				l.Bytes = 1000
			}
			var text bytes.Buffer
			sum, err := archive.Repack(bytes.NewReader(c.tar), &text, l)
			if c.want == nil {
				if err == nil || !strings.Contains(err.Error(), c.says) {
					t.Errorf("%v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			to, dir := root(t)
			got, err := archive.Unpack(&text, to, l)
			if err != nil || got != sum {
				t.Fatalf("repacked %+v, unpacked %+v, %v", sum, got, err)
			}
			if diff := cmp.Diff(c.want, tree(t, dir)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
