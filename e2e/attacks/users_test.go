package attacks_test

import (
	"archive/tar"
	"bytes"
	"io"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"berth"
	"berth/activities/node/runtimetest"
)

// setuidImage pushes an image that names root, with a copy of the test program at /setuid that runs as its owner,
// root. It returns the reference.
func (a *attempt) setuidImage() string {
	a.t.Helper()
	program := runtimetest.Program(a.t)
	var files bytes.Buffer
	w := tar.NewWriter(&files)
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "setuid", Mode: 0o6755, Size: int64(len(program))})
	if err == nil {
		_, err = w.Write(program)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		a.t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(files.Bytes())), nil
	})
	if err != nil {
		a.t.Fatal(err)
	}
	img, err := mutate.AppendLayers(runtimetest.Build(a.t), layer)
	if err == nil {
		img, err = mutate.Config(img, v1.Config{Entrypoint: []string{"/testprog"}, User: "0:0"})
	}
	if err != nil {
		a.t.Fatal(err)
	}
	ref := a.hub("") + "/evil/setuid:1"
	tag, err := name.NewTag(ref, name.Insecure)
	if err == nil {
		err = remote.Write(tag, img)
	}
	if err != nil {
		a.t.Fatal(err)
	}
	return ref
}

// userOf returns the output of the command id in a job of this token.
func (a *attempt) userOf(token string, more map[string]any, command ...string) string {
	a.t.Helper()
	j, log := a.output(token, more, command...)
	if j.Status != berth.Succeeded {
		a.t.Fatalf("job %s: %s %+v: %s", j.ID, j.Status, j.Reason, log)
	}
	return strings.TrimSpace(log)
}

func containerUsers(a *attempt) {
	image := a.setuidImage()
	mine, hers := a.userOf(a.attacker, nil, "id"), a.userOf(a.victim, nil, "id")
	if mine == hers || strings.HasPrefix(mine, "0:") || strings.HasPrefix(hers, "0:") {
		a.breach("the attacker's containers run as %s, the victim's as %s", mine, hers)
	}
	if got := a.userOf(a.attacker, map[string]any{"image": image}, "id"); got != mine {
		a.breach("an image that names root runs as %s", got)
	}
	setuid := map[string]any{"image": image, "entrypoint": []string{"/setuid"}}
	if got := a.userOf(a.attacker, setuid, "id"); got != mine {
		a.breach("a setuid program of the image runs as %s", got)
	}
	// A session has no other rights than the container.
	id := a.submit(a.attacker, map[string]any{"image": image}, "sleep", "10m")
	defer a.cancel(a.attacker, id)
	a.running(id)
	for _, program := range []string{"/testprog", "/setuid"} {
		if got := strings.TrimSpace(a.exec(id, program, "id")); got != mine {
			a.breach("%s in a session runs as %s", program, got)
		}
	}
	for _, user := range []string{"image", "0", "0:0", hers, strings.Split(mine, ":")[0] + ":0"} {
		got := a.call(a.attacker, "POST", "/v1/jobs", a.job(map[string]any{"user": user}, "id"))
		if got.Status != 422 {
			a.breach("user %s: %d %s", user, got.Status, got.clipped())
		}
	}
	a.saw("attacker %s, victim %s; setuid and sessions gain nothing; root and others: 422", mine, hers)
}

func readOnlyRoot(a *attempt) {
	sealed := map[string]any{"read_only_root": true, "tmp_size": "4MiB"}
	refused := 0
	for _, command := range []string{
		"write-file /new x", "write-file /testprog x", "write-file /etc/passwd x", "write-file /etc/hosts x",
		"fill /tmp/x 5",
	} {
		j, log := a.output(a.attacker, sealed, "do", command, "echo written")
		if j.Status == berth.Succeeded || strings.Contains(log, "written") {
			a.breach("%s: %s", command, log)
		}
		refused++
	}
	j, log := a.output(a.attacker, sealed, "do", "write-file /tmp/x y", "write-file /workspace/x y", "echo written")
	if j.Status != berth.Succeeded {
		a.t.Fatalf("the writable folders: job %s %+v: %s", j.Status, j.Reason, log)
	}
	a.saw("%d writes refused; /tmp and /workspace work", refused)
}
