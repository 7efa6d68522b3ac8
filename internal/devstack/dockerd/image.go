package dockerd

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"

	"berth/spec"
)

// ImportImage imports a tarball of a root file system into an engine, under a name such as berth-digits:1,
// and reports whether it did: an engine that has an image of this name keeps it. host is the engine's
// address, as Daemon.Host returns it.
func ImportImage(ctx context.Context, host, name, path string) (bool, error) {
	socket, ok := strings.CutPrefix(host, "unix://")
	if !ok {
		return false, fmt.Errorf("engine %q: allowed is a socket, as unix:///var/run/docker.sock", host)
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	engine := &http.Client{Transport: transport}
	status, said, err := call(ctx, engine, http.MethodGet, "/images/"+name+"/json", nil)
	if err != nil || status == http.StatusOK {
		return false, err
	}
	if status != http.StatusNotFound {
		return false, fmt.Errorf("look for image %s: %s", name, said)
	}
	tarball, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer tarball.Close()
	repository, tag, _ := strings.Cut(name, ":")
	query := url.Values{"fromSrc": {"-"}, "repo": {repository}, "tag": {tag}}
	status, said, err = call(ctx, engine, http.MethodPost, "/images/create?"+query.Encode(), tarball)
	// The engine reports a failure after its headers inside of the body, with status 200.
	if err == nil && (status != http.StatusOK || strings.Contains(said, `"error"`)) {
		err = fmt.Errorf("import image %s from %s: %s", name, path, said)
	}
	return err == nil, err
}

// call sends one request and reads its answer to the end: an import runs for as long. It returns the first
// MiB of the answer.
func call(ctx context.Context, c *http.Client, method, path string, body io.Reader) (int, string, error) {
	// The engine takes any host name. Without a version in the path it speaks its latest one.
	r, err := http.NewRequestWithContext(ctx, method, "http://docker"+path, body)
	if err != nil {
		return 0, "", err
	}
	answer, err := c.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	if err == nil {
		_, err = io.Copy(io.Discard, answer.Body)
	}
	return answer.StatusCode, strings.TrimSpace(string(said)), err
}

// TrustFlags returns the flags by which an agent trusts images that were imported, each as NAME=ROOTFS.tar. They
// came from no registry that the agent could ask, and some engines give them a digest all the same.
func TrustFlags(images []string) []string {
	var flags []string
	for _, image := range images {
		name, _, _ := strings.Cut(image, "=")
		if repository, ok := spec.ImageName(name); ok {
			flags = append(flags, "--trusted-images="+repository)
		}
	}
	return flags
}
