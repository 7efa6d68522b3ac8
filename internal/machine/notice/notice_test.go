package notice_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"berth/internal/machine/notice"
	"berth/wire"
)

// file returns a source with a file of this content.
func file(t *testing.T, content string) notice.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notice.json")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return notice.File(path)
}

func TestAFileIsANotice(t *testing.T) {
	t.Parallel()
	at := soon()
	f := file(t, actionAt("terminate", at))
	s, err := f.Look(t.Context())
	if err != nil || s.End == nil || *s.End != (wire.CloudNotice{Kind: wire.NoticeFile, Deadline: at}) {
		t.Errorf("%+v, %v", s.End, err)
	}
	if err := os.Remove(string(f)); err != nil {
		t.Fatal(err)
	}
	if s, err := f.Look(t.Context()); err != nil || s.End != nil {
		t.Errorf("without the file: %+v, %v", s.End, err)
	}
	if err := syscall.Mkfifo(string(f), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Look(t.Context()); !errors.Is(err, notice.ErrMalformed) {
		t.Errorf("a pipe: %v", err)
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	for setting, valid := range map[string]bool{
		"off": true, "ec2": true, "ec2=http://127.0.0.1:1338": true, "file=/run/notice.json": true,
		"": false, "gce": true, "gce=http://127.0.0.1:1338": true, "gce=https://127.0.0.1": false, "file": false, "file=": false, "file=notice.json": false, "ec2=": false,
		"ec2=127.0.0.1:1338": false, "ec2=https://127.0.0.1": false, "ec2=http://127.0.0.1/latest": false, "on": false,
	} {
		source, err := notice.Open(setting)
		if (err == nil) != valid || valid && (source == nil) != (setting == "off") {
			t.Errorf("%q: %v, %v", setting, source, err)
		}
	}
}

func TestTheHeaderOfANotice(t *testing.T) {
	t.Parallel()
	n := wire.CloudNotice{Kind: wire.NoticeSpot, Deadline: soon()}
	if back, err := wire.ParseCloudNotice(n.String()); err != nil || back != n {
		t.Errorf("%s is read as %+v, %v", n, back, err)
	}
	if _, err := wire.ParseCloudNotice("eclipse 2026-11-26T12:31:04Z"); err != nil {
		t.Errorf("a kind of a later version: %v", err)
	}
	for _, value := range []string{"", "spot", "spot now", "Spot 2026-11-26T12:31:04Z", " 2026-11-26T12:31:04Z"} {
		if n, err := wire.ParseCloudNotice(value); err == nil {
			t.Errorf("%q is read as %+v", value, n)
		}
	}
}
