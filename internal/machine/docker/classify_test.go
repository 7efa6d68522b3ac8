package docker

import (
	"errors"
	"slices"
	"testing"

	"github.com/docker/docker/api/types/system"

	"berth/activities/node"
)

// Messages of engines other than the present one; image_test.go has those.
func TestF37PullMessagesOfOtherEngines(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]error{
		`toomanyrequests: You have reached your unauthenticated pull rate limit. https://www.docker.com/increase-rate-limit`:                                                  node.ErrImageUnavailable,
		`unknown: failed to resolve reference "r.io/a:1": unexpected status from HEAD request to https://r.io/v2/a/manifests/1: 503 Service Unavailable`:                      node.ErrImageUnavailable,
		`failed to resolve reference "r.io/a:1": unexpected status from HEAD request to https://r.io/v2/a/manifests/1: 429 Too Many Requests`:                                 node.ErrImageUnavailable,
		`failed to resolve reference "r.io/a:1": unexpected status from HEAD request to https://r.io/v2/a/manifests/1: 403 Forbidden`:                                         node.ErrImageNotFound,
		`failed to resolve reference "r.io/a:1": pull access denied, repository does not exist or may require authorization: authorization failed: no basic auth credentials`: node.ErrImageNotFound,
		`Get "https://r.io/v2/": net/http: request canceled while waiting for connection (Client.Timeout exceeded while awaiting headers)`:                                    node.ErrImageUnavailable,
		`Get "https://r.io/v2/": net/http: TLS handshake timeout`:                                                                                                             node.ErrImageUnavailable,
		`Get "https://r.io/v2/": tls: failed to verify certificate: x509: certificate signed by unknown authority`:                                                            node.ErrImageUnavailable,
		`failed to register layer: write /usr/lib/x: no space left on device`:                                                                                                 node.ErrImageUnavailable,
		`no matching manifest for linux/arm64/v8 in the manifest list entries`:                                                                                                node.ErrImageNotFound,
		`filesystem layer verification failed for digest sha256:00`:                                                                                                           node.ErrImageMismatch,
		`unexpected EOF`:                                     node.ErrImageUnavailable,
		`something that nobody has ever seen`:                node.ErrImageUnavailable,
		`denied: requested access to the resource is denied`: node.ErrImageNotFound,
	} {
		if err := classifyPull("r.io/a:1", errors.New(text)); !errors.Is(err, want) {
			t.Errorf("%s\nis taken for: %v\nwant: %v", text, err, want)
		}
	}
}

func TestStartMessagesNameTheCulprit(t *testing.T) {
	t.Parallel()
	const (
		runc       = `OCI runtime create failed: runc create failed: unable to start container process: `
		runc10     = `OCI runtime create failed: container_linux.go:380: starting container process caused: ` // up to 1.0
		inInit     = runc + `error during container init: `
		inInit10   = runc10 + `process_linux.go:545: container init caused: `
		mountpoint = inInit + `error mounting "/state/ws" to rootfs at "/ws": create mountpoint for /ws mount: ` // since 1.1.14 and 1.2
		id         = `33c8b42c9e0f4c5fa1d1d8f3f1b1f2a0c4d5e6f708192a3b4c5d6e7f8091a2b3`
		layer      = `mkdir /var/lib/docker/overlay2/` + id + `-init/merged/` // created by the engine for each container
		lost       = `OCI runtime create failed: unable to retrieve OCI runtime error (open /run/containerd/` + id +
			`/log.json: no such file or directory): `
	)
	for text, want := range map[string]error{
		`could not select device driver "nvidia" with capabilities: [[gpu]]`: node.ErrDevice,
		runc + `error during container init: error running hook #0: exit status 1, stderr: Auto-detected mode as 'legacy'
nvidia-container-cli: device error: GPU-1: unknown device: unknown`: node.ErrDevice,
		inInit10 + `setup user: cannot set uid to unmapped user in user namespace: unknown`:                                                 node.ErrUnmappedUser,
		inInit + `setup user: cannot set gid to unmapped user in user namespace: unknown`:                                                   node.ErrUnmappedUser,
		`CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=GPU-1`:                                                        node.ErrDevice,
		runc + `exec: "nope": executable file not found in $PATH: unknown`:                                                                  node.ErrBadCommand,
		runc + `exec: "/bin": stat /bin: is a directory: unknown`:                                                                           node.ErrBadCommand,
		runc + `exec: "/x": permission denied: unknown`:                                                                                     node.ErrBadCommand,
		runc + `exec /x: exec format error`:                                                                                                 node.ErrBadCommand,
		`unable to find user app: no matching entries in passwd file`:                                                                       node.ErrBadImage,
		`unable to find group app: no matching entries in group file`:                                                                       node.ErrBadImage,
		`unable to find user app: read /var/lib/docker/x/merged/etc/passwd: is a directory`:                                                 node.ErrBadImage,
		`uids and gids must be in range 0-2147483647`:                                                                                       node.ErrBadImage,
		runc + `error during container init: mkdir /sys/x: read-only file system: unknown`:                                                  node.ErrBadImage,
		runc + `error during container init: mkdir /dev/x: no space left on device: unknown`:                                                nil,
		runc + `error mounting "/state/ws" to rootfs at "/workspace": mkdir /var/lib/docker/overlay2/x/merged/sys/x: read-only file system`: node.ErrBadImage,
		runc + `error mounting "/state/ws" to rootfs at "/ws": mkdir /var/lib/docker/overlay2/x/merged/ws: read-only file system`:           nil,
		runc + `error mounting "/state/ws" to rootfs at "/workspace": "/x/merged/proc" cannot be mounted because it is inside /proc`:        node.ErrBadImage,
		`unable to find user app: read /x/merged/etc/passwd: input/output error`:                                                            nil,
		`unable to find group app: open /x/merged/etc/group: too many open files`:                                                           nil,
		`evalSymlinksInScope: too many links in /var/lib/docker/x/merged/workspace`:                                                         node.ErrBadCommand,
		runc + `mount: openat workspace: too many levels of symbolic links: unknown`:                                                        node.ErrBadCommand,
		runc + `error setting rlimit type 7: operation not permitted: unknown`:                                                              nil,

		`unable to find groups for spec app: read /x/merged/etc/group: is a directory`:     node.ErrBadImage,
		`unable to find groups for spec app: read /x/merged/etc/group: input/output error`: nil,
		`unable to find user app: bufio.Scanner: token too long`:                           node.ErrBadImage,

		inInit10 + `mkdir /sys/x: read-only file system: unknown`:  node.ErrBadImage,
		inInit10 + `mkdir /data/x: read-only file system: unknown`: nil,
		inInit10 + `rootfs_linux.go:75: mounting "/state/ws" to rootfs at "/ws" caused: mkdir /x/` + id + `/merged/sys/x: read-only file system: unknown`: node.ErrBadImage,
		inInit10 + `rootfs_linux.go:138: reopening /dev/null inside container caused: Failed to open /dev/null - open /dev/null: is a directory: unknown`: node.ErrBadImage,
		runc10 + `setup user: no such file or directory: unknown`:                                                                            node.ErrBadImage,
		runc + `unable to setup user: stat /dev/null: no such file or directory: unknown`:                                                    node.ErrBadImage,
		inInit + `can't mask paths: open /dev/null: no such file or directory: unknown`:                                                      node.ErrBadImage,
		mountpoint + `make mountpoint "/ws": mkdirat /var/lib/docker/rootfs/overlayfs/` + id + `/sys/x: read-only file system: unknown`:      node.ErrBadImage,
		mountpoint + `make mountpoint "/ws": mkdirat /var/lib/docker/overlay2/` + id + `/merged/proc/x: no such file or directory: unknown`:  node.ErrBadImage,
		mountpoint + `make mountpoint "/ws": mkdirat /var/lib/docker/overlay2/` + id + `/merged/dev/pts/x: operation not permitted: unknown`: node.ErrBadImage,
		mountpoint + `make mountpoint "/ws": mkdirat /var/lib/docker/rootfs/overlayfs/` + id + `/ws: read-only file system: unknown`:         nil,
		mountpoint + `make mountpoint "/ws": mkdirat /var/lib/docker/overlay2/` + id + `/merged/sys/x: no space left on device: unknown`:     nil,
		mountpoint + `check proc-safety of /ws mount: "/x/merged/proc/1" cannot be mounted because it is inside /proc: unknown`:              node.ErrBadImage,
		mountpoint + `mountpoint "/x/merged" is on the top of rootfs "/x/merged": unknown`:                                                   node.ErrBadImage,

		layer + `dev/shm: permission denied`:                                            nil,
		layer + `dev/pts: read-only file system`:                                        nil,
		layer + `proc/x: operation not permitted`:                                       nil,
		`mkdir /var/lib/docker/aufs/mnt/` + id + `-init/dev/shm: read-only file system`: nil,

		lost + `exec: "runc": executable file not found in $PATH: unknown`:                                              nil,
		lost + `fork/exec /usr/bin/runc: exec format error: unknown`:                                                    nil,
		lost + `fork/exec /usr/bin/runc: permission denied: unknown`:                                                    nil,
		lost + `runc did not terminate successfully: exit status 127: exec: "runc": no such file or directory: unknown`: nil,
		`OCI runtime create failed: runc did not terminate sucessfully: exit status 1: chdir to cwd: unknown`:           nil,
		`failed to start shim: exec: "containerd-shim": executable file not found in $PATH: unknown`:                    nil,
		`exec: "docker-init": executable file not found in $PATH`:                                                       nil,
		lost + `exec: "nvidia-container-runtime": executable file not found in $PATH: unknown`:                          node.ErrDevice,
	} {
		err := classifyStart(errors.New(text))
		for _, kind := range []error{node.ErrDevice, node.ErrBadCommand, node.ErrBadImage, node.ErrUnmappedUser} {
			if errors.Is(err, kind) != (kind == want) {
				t.Errorf("%s\nis taken for: %v\nwant: %v", text, err, want)
			}
		}
	}
}

func TestGPUsAreRequestedAsTheEngineUnderstands(t *testing.T) {
	t.Parallel()
	gpus := []string{"GPU-a", "MIG-b"}
	dirs := []string{"/etc/cdi"}
	found := []system.DeviceInfo{{ID: "nvidia.com/gpu=GPU-a"}, {ID: "nvidia.com/gpu=MIG-b"}, {ID: "nvidia.com/gpu=0"}}
	for _, c := range []struct {
		claim string
		info  system.Info
		cdi   bool
	}{
		{"no CDI before 25", system.Info{ServerVersion: "20.10.24+dfsg1", CDISpecDirs: dirs}, false},
		{"25 with CDI switched on", system.Info{ServerVersion: "25.0.3", CDISpecDirs: dirs}, true},
		{"25 with CDI switched off", system.Info{ServerVersion: "25.0.3"}, false},
		{"28.1 does not list devices yet", system.Info{ServerVersion: "28.1.1", CDISpecDirs: dirs}, true},
		{"28.2 found them all", system.Info{ServerVersion: "28.2.2", CDISpecDirs: dirs, DiscoveredDevices: found}, true},
		{"28.2 found some", system.Info{ServerVersion: "28.2.2", CDISpecDirs: dirs, DiscoveredDevices: found[:1]}, false},
		{"29 found none", system.Info{ServerVersion: "29.0.0", CDISpecDirs: dirs}, false},
		{"a version that says nothing", system.Info{ServerVersion: "dev", CDISpecDirs: dirs}, false},
	} {
		requests, visible := deviceRequests(c.info, gpus)
		if len(requests) != 1 || requests[0].Count != 0 {
			t.Fatalf("%s: requests are %+v", c.claim, requests)
		}
		r, driver, ids, env := requests[0], "nvidia", gpus, "GPU-a,MIG-b"
		if c.cdi {
			driver, ids, env = "cdi", []string{"nvidia.com/gpu=GPU-a", "nvidia.com/gpu=MIG-b"}, "void"
		}
		if r.Driver != driver || !slices.Equal(r.DeviceIDs, ids) || visible != env {
			t.Errorf("%s: driver %q with %v, visible %q", c.claim, r.Driver, r.DeviceIDs, visible)
		}
	}
	if requests, visible := deviceRequests(system.Info{ServerVersion: "28.2.2"}, nil); requests != nil || visible != "void" {
		t.Errorf("without GPUs: %+v, visible %q", requests, visible)
	}
}
