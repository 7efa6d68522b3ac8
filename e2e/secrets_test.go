package e2e_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"berth"
	apiclient "berth/api/client"
	"berth/internal/lib/archive"
	"berth/internal/machine/fetch/s3test"
	"berth/spec"
	"berth/wire"
)

// hidesSecrets runs a job with code, data in S3 behind a secret login, another secret, a
// registry's login and an output, twice: the second time the machine has code and data. Then it
// searches for the values in every row of Berth's and Temporal's databases, in the object store,
// on the machines' disks and in the logs. A value that is no secret proves that the search works.
func hidesSecrets(t *testing.T, s *stack) {
	const value, known = "hunter2-canary-of-a-secret", "canary-that-is-no-secret"
	data := s3test.Start(t)
	data.Put("set/part.txt", "a part of the data")
	for name, v := range map[string]spec.Sensitive{"TOKEN": value, "LOGIN": "me:" + value, "S3": data.Login} {
		if _, _, err := s.api.SetSecret(t.Context(), spec.NewSecretValue{Name: name, Value: v}); err != nil {
			t.Fatal(err)
		}
	}
	job := jobSpec("hides", "do", "digest TOKEN /run/secrets/TOKEN", "read-file main.txt", "read-file /data/part.txt", "write-file /workspace/out.txt "+known)
	job.Outputs = []spec.Output{{Name: "result", Path: "/workspace/out.txt"}}
	job.Placement.AvoidMachines = []berth.MachineID{"m1"}
	job.Secrets, job.ImageAuth, job.Labels = []string{"TOKEN"}, "LOGIN", map[string]string{"known": known}
	job.Inputs = []spec.Input{data.Input("set/", "/data", "S3")}
	job.Workdir = string(s.upload(t, map[string]string{"main.txt": known}))
	first, second := s.submit(t, job), berth.JobID("")
	s.ends(t, first, berth.Succeeded)
	job.SecretsAs = spec.SecretsBoth // the first had files alone, as on each new cluster
	second = s.submit(t, job)
	s.ends(t, second, berth.Succeeded)
	sum := sha256.Sum256([]byte(value))
	want := hex.EncodeToString(sum[:])
	for id, variable := range map[berth.JobID]string{first: "env TOKEN is unset", second: "env TOKEN " + want} {
		var printed []string
		if err := s.api.Logs(t.Context(), id, apiclient.LogsQuery{}, func(l wire.LogLine) error { printed = append(printed, l.Text); return nil }); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(printed, []string{variable, "file " + want, known, "a part of the data"}) {
			t.Errorf("job %s prints %q", id, printed)
		}
	}
	for id, how := range map[berth.JobID]string{first: ": fetched ", second: "reused cached "} {
		events, err := s.api.Events(t.Context(), id, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, what := range []string{" workdir (", " inputs[0] ("} {
			if !slices.ContainsFunc(events.Items, func(e wire.Event) bool {
				return e.Kind == wire.EventFetched && strings.Contains(e.Detail, what) && strings.Contains(e.Detail, how)
			}) {
				t.Errorf("job %s does not say that its%s%s: %+v", id, what, how, events.Items)
			}
		}
		if list, err := s.api.Outputs(t.Context(), id); err != nil || len(list.Items) != 1 || list.Items[0].Name != "result" {
			t.Errorf("its outputs are %+v, %v", list, err)
		}
	}
	_, key, _ := strings.Cut(string(data.Login), ":")
	for _, secret := range []string{value, key} {
		if found := s.look(t, secret); len(found) > 0 {
			t.Errorf("the secret %s lies in %v", secret, found)
		}
	}
	for text, places := range map[string][]string{known: {".jobs", "/cache/"}, string(second): {"temporal.history_node", "/blobs/", "a log"}} {
		found := strings.Join(s.look(t, text), " ") + " " + strings.Join(s.paths(t, text), " ")
		for _, place := range places {
			if !strings.Contains(found, place) {
				t.Errorf("%q was not found in %s, only in %s: the looking proves nothing", text, place, found)
			}
		}
	}
}

// upload sends a folder of these files.
func (s *stack) upload(t testing.TB, files map[string]string) berth.Address {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var text bytes.Buffer
	sum, err := archive.Pack(t.Context(), &text, dir, archive.Default)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.api.SendUpload(t.Context(), sum.Address, func(w io.Writer) error { _, err := w.Write(text.Bytes()); return err }); err != nil {
		t.Fatal(err)
	}
	return sum.Address
}

// look names the tables, files and logs that hold a text, as it is, in hex or in
// base64.
func (s *stack) look(t testing.TB, text string) (found []string) {
	t.Helper()
	forms := []string{text, hex.EncodeToString([]byte(text))}
	for shift := range 3 { // wherever in a longer text it stands
		code := base64.StdEncoding.EncodeToString(append(make([]byte, shift), text...))
		forms = append(forms, code[4*((shift+2)/3):len(code)-4])
	}
	for _, database := range []string{"", "temporal", "temporal_visibility"} {
		found = append(found, s.lookInDatabase(t, database, forms)...)
	}
	err := filepath.WalkDir(s.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		for _, f := range forms {
			if bytes.Contains(content, []byte(f)) {
				found = append(found, path)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range forms {
		if strings.Contains(s.logs.text(), f) {
			found = append(found, "a log")
		}
	}
	return found
}

// paths lists the files whose path holds a text.
func (s *stack) paths(t testing.TB, text string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(s.dir, func(path string, d fs.DirEntry, err error) error {
		if strings.Contains(path, text) {
			found = append(found, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func (s *stack) lookInDatabase(t testing.TB, name string, forms []string) (found []string) {
	t.Helper()
	u, err := url.Parse(s.database)
	if err != nil {
		t.Fatal(err)
	}
	if name != "" {
		u.Path = "/" + s.prefix(t) + name
	}
	conn, err := pgx.Connect(t.Context(), u.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	rows, err := conn.Query(t.Context(), `SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' AND table_type = 'BASE TABLE'`)
	if err != nil {
		t.Fatal(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		var n int
		sql := fmt.Sprintf(`SELECT count(*) FROM %s t WHERE EXISTS (SELECT FROM unnest($1::text[]) f WHERE strpos(t::text, f) > 0)`, pgx.Identifier{table}.Sanitize())
		if err := conn.QueryRow(t.Context(), sql, forms).Scan(&n); err != nil {
			t.Fatalf("%s: %v", table, err)
		}
		if n > 0 {
			found = append(found, name+"."+table)
		}
	}
	return found
}
