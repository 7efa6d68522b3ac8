package attacks_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/pkg/stdcopy"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"berth"
	"berth/activities/node/runtimetest"
	"berth/e2e/rig"
	"berth/spec"
	"berth/wire"
)

// hub starts a registry on loopback, which engines trust without TLS. The registry asks for the login, USER:PASSWORD,
// unless login is empty.
func (a *attempt) hub(login string) (address string) {
	a.t.Helper()
	return a.hubAt(nil, login)
}

// hubAt is hub at an address that listens already; nil: at any.
func (a *attempt) hubAt(listener net.Listener, login string) (address string) {
	a.t.Helper()
	store := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		want := "Basic " + base64.StdEncoding.EncodeToString([]byte(login))
		if login != "" && r.Header.Get("Authorization") != want {
			w.Header().Set("WWW-Authenticate", `Basic realm="hub"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		store.ServeHTTP(w, r)
	}))
	if listener != nil {
		_ = server.Listener.Close() // nothing was accepted
		server.Listener = listener
	}
	server.Start()
	address = strings.TrimPrefix(server.URL, "http://")
	a.t.Cleanup(server.Close)
	a.t.Cleanup(func() { a.removeImages(address + "/") })
	return address
}

// removeImages removes all images whose names begin like this from the engine.
func (a *attempt) removeImages(prefix string) {
	api := a.engine()
	defer api.Close()
	// The context of the test has ended.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(a.t.Context()), rig.Patience)
	defer cancel()
	all, err := api.ImageList(ctx, image.ListOptions{})
	if err != nil {
		a.t.Errorf("list images: %v", err)
		return
	}
	for _, i := range all {
		for _, tag := range append(i.RepoTags, i.RepoDigests...) {
			if strings.HasPrefix(tag, prefix) {
				// Another attack may have removed the image, so an error is no failure.
				_, _ = api.ImageRemove(ctx, tag, image.RemoveOptions{Force: true})
			}
		}
	}
}

// push pushes the test image with an environment variable added, and returns the reference.
func (a *attempt) push(reference, login, variable string) string {
	a.t.Helper()
	img, err := mutate.Config(runtimetest.Build(a.t), v1.Config{
		Entrypoint: []string{"/testprog"}, Env: []string{variable},
	})
	if err != nil {
		a.t.Fatal(err)
	}
	tag, err := name.NewTag(reference, name.Insecure)
	if err != nil {
		a.t.Fatal(err)
	}
	user, password, _ := strings.Cut(login, ":")
	auth := authn.Anonymous
	if login != "" {
		auth = &authn.Basic{Username: user, Password: password}
	}
	if err := remote.Write(tag, img, remote.WithAuth(auth)); err != nil {
		a.t.Fatal(err)
	}
	return reference
}

func movedTag(a *attempt) {
	hub := a.hub("")
	ref := a.push(hub+"/team/app:1", "", "VERSION=first")
	more := map[string]any{
		"image": ref, "retry": map[string]any{"max_attempts": 2, "backoff": map[string]any{"initial": "1s"}},
	}
	id := a.submit(a.victim, more, "do", "env VERSION", "at BERTH_ATTEMPT 1 await-file /workspace/moved", "exit 1")
	a.awaitLog(a.victim, id, "VERSION=first")
	a.push(ref, "", "VERSION=second")
	a.exec(id, "/testprog", "write-file", "/workspace/moved", "yes")
	a.ended(id)
	out := a.log(a.victim, id)
	second := string(a.must(a.victim, "GET", "/v1/jobs/"+string(id)+"/logs?attempt=2", ""))
	if n := strings.Count(second, "VERSION=first"); n == 0 || strings.Contains(out, "second") {
		a.breach("the second attempt ran another image: %s", out)
	}
	a.saw("both attempts run the first digest")
	if _, err := a.API.SetQuota(a.t.Context(), spec.Quota{
		Tenant: attacker, Images: []string{"docker.io/berth-testprog", "docker.io/library/berth-testprog"},
	}); err != nil {
		a.t.Fatal(err)
	}
	defer func() {
		if err := a.API.DeleteQuota(a.t.Context(), attacker); err != nil {
			a.t.Error(err)
		}
	}()
	outside := a.job(map[string]any{"image": ref}, "exit", "0")
	a.refused("image outside the list", a.call(a.attacker, "POST", "/v1/jobs", outside), 422)
	a.refused("image in the list", a.call(a.attacker, "POST", "/v1/jobs", a.job(nil, "exit", "0")), 201)
}

// movedAfterSubmit moves the tag of a job that waits for another one.
func movedAfterSubmit(a *attempt) {
	hub := a.hubAt(a.plaintext, "")
	ref := a.push(hub+"/team/queued:1", "", "VERSION=first")
	before := a.submit(a.victim, map[string]any{"env": map[string]string{"STATE": "ready"}},
		"do", "env STATE", "await-file /workspace/moved")
	a.awaitLog(a.victim, before, "STATE=ready")
	id := a.submit(a.victim, map[string]any{"image": ref, "needs": []string{"job:" + string(before)}}, "env", "VERSION")
	resolved := a.await(id, func(j wire.Job) bool { return j.ImageDigest != "" || j.Status.Terminal() })
	a.push(ref, "", "VERSION=second")
	a.exec(before, "/testprog", "write-file", "/workspace/moved", "yes")
	j := a.ended(id)
	out := a.log(a.victim, id)
	if j.Status != berth.Succeeded || j.ImageDigest != resolved.ImageDigest || !strings.Contains(out, "VERSION=first") {
		a.breach("the job is %s with %s by %s: %s", j.Status, j.ImageDigest, j.ImageDigestBy, out)
	}
	a.saw("it runs the digest found by: %s", j.ImageDigestBy)
}

func privateImage(a *attempt) {
	const login = "her:password"
	hub := a.hub(login)
	ref := a.push(hub+"/hers/private:1", login, "PRIVATE=canary-of-the-image")
	a.must(a.victim, "POST", "/v1/secrets", `{"name": "login", "value": "`+login+`"}`)
	hers, out := a.output(a.victim, map[string]any{"image": ref, "image_auth": "login"}, "env", "PRIVATE")
	if hers.Status != berth.Succeeded || !strings.Contains(out, "canary-of-the-image") {
		a.t.Fatalf("the victim's job is %s, %v: %s", hers.Status, hers.Reason, out)
	}
	a.must(a.attacker, "POST", "/v1/secrets", `{"name": "guess", "value": "me:guess"}`)
	digest := hub + "/hers/private@" + hers.ImageDigest[strings.Index(hers.ImageDigest, "sha256:"):]
	for what, more := range map[string]map[string]any{
		"without a login": {"image": ref}, "with a wrong login": {"image": ref, "image_auth": "guess"},
		"by its digest": {"image": digest},
	} {
		more["queue_timeout"] = "2m"
		id := a.submit(a.attacker, more, "env", "PRIVATE")
		j := a.ended(id)
		if out := a.log(a.attacker, id); j.Status == berth.Succeeded || strings.Contains(out, "canary") {
			a.breach("%s: %s", what, out)
		}
		reason := ""
		if j.Reason != nil {
			reason = string(j.Reason.Code)
		}
		a.saw("%s: %s %s", what, j.Status, reason)
	}
}

// evilImage loads an image whose configuration asks for all GPUs, and returns its reference.
func (a *attempt) evilImage() string {
	a.t.Helper()
	img, err := mutate.Config(runtimetest.Build(a.t), v1.Config{
		Entrypoint: []string{"/testprog"},
		Env:        []string{"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"},
		Labels:     map[string]string{"berth.network": "host"},
	})
	if err != nil {
		a.t.Fatal(err)
	}
	hub := a.hub("")
	ref := hub + "/evil/image:1"
	tag, err := name.NewTag(ref, name.Insecure)
	if err == nil {
		err = remote.Write(tag, img)
	}
	if err != nil {
		a.t.Fatal(err)
	}
	return ref
}

// exec runs a program through the engine in a job's container, while the job's command runs, and returns the program's
// output.
func (a *attempt) exec(id berth.JobID, command ...string) string {
	a.t.Helper()
	api := a.engine()
	defer api.Close()
	made, err := api.ContainerExecCreate(a.t.Context(), a.inspect(id).ID, container.ExecOptions{
		Cmd: command, AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		a.t.Fatal(err)
	}
	conn, err := api.ContainerExecAttach(a.t.Context(), made.ID, container.ExecAttachOptions{})
	if err != nil {
		a.t.Fatal(err)
	}
	defer conn.Close()
	var out strings.Builder
	if err := conn.Conn.SetReadDeadline(time.Now().Add(rig.Patience)); err != nil {
		a.t.Fatal(err)
	}
	if _, err := stdcopy.StdCopy(&out, &out, conn.Reader); err != nil {
		a.t.Fatalf("output of %v: %v: %s", command, err, out.String())
	}
	return out.String()
}

// inspectRaw returns the engine's description of a job's container as text.
func (a *attempt) inspectRaw(id berth.JobID) string {
	a.t.Helper()
	b, err := json.Marshal(a.inspect(id))
	if err != nil {
		a.t.Fatal(err)
	}
	if len(b) < 100 {
		a.t.Fatalf("no inspection: %s", b)
	}
	return string(b)
}
