package agent

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"berth"
	"berth/activities/node"
	"berth/spec"
)

// imageAccess decides which tenants may run the images of this machine. An engine offers each of
// its images to all callers, also an image that it pulled with the login of one tenant. A tenant may
// run an image from a registry if one of these holds:
//
//   - this machine has just pulled the image with the login of the tenant's job;
//   - the registry has served the manifest to that tenant and login within the last period;
//   - the image is public: the registry has served its manifest to this machine without a login;
//   - the operator trusts the repository on this machine.
//
// Otherwise imageAccess asks the registry, and a refusal or a silent registry is the answer that a
// pull would get. So a tenant cannot find out which images of others the machine has.
//
// Public images are kept in image-access.json. The results of logins are kept in memory only: a file
// with hashes of logins would let a thief of the disk try passwords. A missing or damaged file costs
// further questions to registries, and never gives access.
type imageAccess struct {
	path    string
	runtime node.Runtime
	trusted []string // registries and repositories, see spec.ImageAllowed
	log     *slog.Logger
	logins  *answers // of registries, about logins of tenants

	mu     sync.Mutex
	public map[string]time.Time // last use by NAME@DIGEST
}

// maxPublicImages bounds image-access.json; the least recently used images are dropped.
const maxPublicImages = 2048

// openImageAccess reads the public images that an earlier process has recorded.
func openImageAccess(cfg Config, log *slog.Logger) *imageAccess {
	a := &imageAccess{
		path: filepath.Join(cfg.StateDir, "image-access.json"), runtime: cfg.Runtime, trusted: cfg.TrustedImages,
		log: log, logins: newAnswers(cfg.Timing.AccessFresh), public: map[string]time.Time{},
	}
	text, err := os.ReadFile(a.path)
	if err == nil {
		err = json.Unmarshal(text, &a.public)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		log.Warn("cannot read the record of public images, registries will be asked again", "err", err)
	}
	if err != nil || a.public == nil {
		a.public = map[string]time.Time{}
	}
	return a
}

// demand returns nil if jobs of the tenant with this login may run an image that EnsureImage has
// returned for ref. The error is one of node.Runtime.CheckImage.
func (a *imageAccess) demand(
	ctx context.Context, tenant berth.TenantID, ref string, image node.Image, login *node.RegistryAuth,
) error {
	name, ok := spec.ImageName(ref)
	if image.Digest == "" || ok && spec.ImageAllowed(a.trusted, name) {
		return nil // of no registry, or trusted
	}
	pinned := name + "@" + image.Digest
	parts := []string{string(tenant), pinned}
	if login != nil {
		parts = append(parts, login.Username, login.Password)
	}
	key := question(parts...)
	switch {
	case image.Pulled:
		a.allow(key, pinned, login)
		return nil
	case a.isPublic(pinned):
		return nil
	}
	return a.logins.ask(ctx, key, func(ctx context.Context) error {
		err := a.runtime.CheckImage(ctx, ref, image.Digest, login)
		if err == nil {
			a.allow(key, pinned, login)
		}
		return err
	})
}

// isPublic reports whether the registry has served the image without a login.
func (a *imageAccess) isPublic(pinned string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, public := a.public[pinned]
	if public {
		a.public[pinned] = time.Now().UTC() // the file gets the time with its next change
	}
	return public
}

// allow records that the registry has served the image to the login, or to everybody if login is nil.
func (a *imageAccess) allow(key, pinned string, login *node.RegistryAuth) {
	if login != nil {
		a.logins.note(key)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	_, known := a.public[pinned]
	a.public[pinned] = time.Now().UTC()
	if known {
		return
	}
	for len(a.public) > maxPublicImages {
		a.dropOldest()
	}
	if err := writeJSON(a.path, a.public); err != nil {
		a.log.Warn("cannot store the record of public images", "err", err)
	}
}

// dropOldest forgets the least recently used public image. a.mu is held.
func (a *imageAccess) dropOldest() {
	oldest := ""
	for name, used := range a.public {
		if oldest == "" || used.Before(a.public[oldest]) {
			oldest = name
		}
	}
	delete(a.public, oldest)
}

// checkTrustedImages returns an error for an entry that names no registry and no repository.
func checkTrustedImages(entries []string) error {
	var faults []error
	for _, f := range spec.CheckImageEntries("trusted images", entries) {
		faults = append(faults, errors.New(f.Field+": "+f.Detail+": write "+f.Allowed))
	}
	return errors.Join(faults...)
}
