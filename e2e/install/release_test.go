package install_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestEqualInputGivesEqualReleases makes the files of a release twice, from files in place of the programs: archives,
// packages, images, chart and sums. Each run has another umask, time zone and locale.
func TestEqualInputGivesEqualReleases(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	if err := os.Symlink(standIns(t), filepath.Join(folder, "amd64")); err != nil {
		t.Fatal(err)
	}
	rehearse := func(umask, zone, locale string) (out, sums string) {
		t.Helper()
		out = filepath.Join(t.TempDir(), "out")
		cmd := exec.Command("sh", "-c", `umask "$0" && exec ../../scripts/release.sh "$@"`, umask,
			"--rehearsal", "--arch", "amd64", "--programs", folder, "--out", out, "9.8.7")
		cmd.Env = append(os.Environ(), "TZ="+zone, "LC_ALL="+locale)
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("release.sh: %v\n%s", err, text)
		}
		b, err := os.ReadFile(filepath.Join(out, "SHA256SUMS"))
		if err != nil {
			t.Fatal(err)
		}
		return out, string(b)
	}
	out, first := rehearse("022", "UTC", "C")
	_, second := rehearse("077", "Asia/Kathmandu", "C.UTF-8")
	if first != second {
		t.Errorf("two runs differ:\n%s\n%s", first, second)
	}
	for _, name := range []string{"berth-9.8.7-linux-amd64.tar.gz", "berthd-9.8.7.tgz", "berthd-9.8.7-image-amd64.tar",
		"berthd_9.8.7_amd64.deb", "NOTICE"} {
		if !strings.Contains(first, "  "+name+"\n") {
			t.Errorf("the release lacks %s:\n%s", name, first)
		}
	}
	chart := filepath.Join(out, "berthd-9.8.7.tgz")
	about := output(t, "tar", "--extract", "--gzip", "--to-stdout", "--file", chart, "berthd/Chart.yaml")
	if !strings.Contains(about, "\nversion: 9.8.7\n") || !strings.Contains(about, "\nappVersion: \"9.8.7\"\n") {
		t.Errorf("the chart of version 9.8.7 says\n%s", about)
	}
	rules := output(t, "tar", "--extract", "--gzip", "--to-stdout", "--file", chart, "berthd/files/berth.rules.yaml")
	if want, err := os.ReadFile("../../deploy/prometheus/berth.rules.yaml"); err != nil || rules != string(want) {
		t.Errorf("the chart has other alerting rules than deploy/prometheus: %v", err)
	}
}
