package cloudexec_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/control/cloud"
	"berth/internal/control/cloud/cloudexec"
)

func TestAMissingProgramIsAWarningAndThenAnErrorOfTheCall(t *testing.T) {
	t.Parallel()
	plain := filepath.Join(t.TempDir(), "plain")
	write(t, plain, "")
	for path, text := range map[string]string{"/no/such/program": "no such file", plain: "is not an executable file"} {
		var logged bytes.Buffer
		p, err := cloudexec.New(cloudexec.Options{Name: "test", Command: []string{path},
			Logger: slog.New(slog.NewTextHandler(&logged, nil))})
		if err != nil || !strings.Contains(logged.String(), text) {
			t.Fatalf("new: %v, log %s", err, &logged)
		}
		_, err = p.Create(t.Context(), launch())
		want(t, err, cloud.Throttle, text)
	}
}

// No part of a program that cannot be started has run, so its call has not reached the cloud.
func TestAProgramThatCannotBeStartedHasCalledNothing(t *testing.T) {
	t.Parallel()
	for _, content := range []string{"#!/no/such/interpreter\n", "\x7fELF of another architecture"} {
		path := filepath.Join(t.TempDir(), "program")
		write(t, path, content)
		if err := os.Chmod(path, 0o700); err != nil {
			t.Fatal(err)
		}
		p, err := cloudexec.New(cloudexec.Options{Name: "test", Command: []string{path}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = p.Create(t.Context(), launch())
		if e := want(t, err, cloud.Throttle, "no process was started for create"); !e.Unsent {
			t.Errorf("%v is not of a call that was not made", err)
		}
	}
}

func TestTextsOfAnAnswerAreSafeToStore(t *testing.T) {
	t.Parallel()
	secret := launch().Bootstrap.JoinToken
	long := strings.Repeat("x", 5000)
	for _, c := range []struct{ name, answer, want string }{
		{"error", `{"error": {"kind": "auth", "message": "refused ` + secret + `", "scope": "` + secret + `\u0000"}}`, "(***): refused ***"},
		{"kind", `{"error": {"kind": "` + secret + `", "message": "x"}}`, `error.kind "***"`},
		{"field", `{"` + secret + `": 1}`, "***"},
	} {
		_, err := provide(t, answered(c.answer)).Create(t.Context(), launch())
		if err == nil || strings.Contains(err.Error(), secret) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	i := instance()
	i.Reason = secret + "\x00" + long
	got, err := provide(t, answered(encode(t, cloudexec.Answer{Instance: &i}))).Create(t.Context(), launch())
	if err != nil || !strings.HasPrefix(got.Reason, "*** xxx") || len(got.Reason) > 2100 {
		t.Errorf("reason of %d bytes, %v", len(got.Reason), err)
	}
	list := []cloud.Instance{i}
	all, err := provide(t, answered(encode(t, cloudexec.Answer{Instances: &list}))).List(t.Context(), uid, nil)
	if err != nil || len(all) != 1 || strings.Contains(all[0].Reason, "\x00") || len(all[0].Reason) > 2100 {
		t.Errorf("list: %+v, %v", all, err)
	}
	for _, id := range []string{"i-\x00", "i " + secret, long} { // an id that is changed names another instance
		i := instance()
		i.ID = id
		_, err := provide(t, answered(encode(t, cloudexec.Answer{Instance: &i}))).Create(t.Context(), launch())
		if want(t, err, cloud.Unknown, "id"); strings.Contains(err.Error(), secret) || len(err.Error()) > 3000 {
			t.Errorf("id: %v", err)
		}
	}
}
