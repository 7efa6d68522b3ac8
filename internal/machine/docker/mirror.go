package docker

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/docker/docker/api/types/image"

	"berth/internal/lib/publicnet"
)

// Mirror is a second source of the content of a registry.
type Mirror struct {
	Registry string // whose images the mirror has, such as docker.io
	Host     string // HOST[:PORT][/PATH] of the mirror
}

// ParseMirror reads REGISTRY=https://HOST[:PORT][/PATH]. A mirror on this machine may be http://.
func ParseMirror(text string) (Mirror, error) {
	registry, address, ok := strings.Cut(text, "=")
	u, err := url.Parse(address)
	if !ok || err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return Mirror{}, fmt.Errorf("%.200q is not REGISTRY=https://HOST, such as docker.io=https://mirror.example",
			text)
	}
	if u.Scheme != "https" && (u.Scheme != "http" || !publicnet.Loopback(u.Hostname())) {
		return Mirror{}, fmt.Errorf("%s: allowed are https://, and http:// on this machine", text)
	}
	m := Mirror{Registry: registry, Host: strings.TrimSuffix(u.Host+u.Path, "/")}
	// Names that the engine would read otherwise than written here.
	named, err := reference.ParseNormalizedNamed(m.Registry + "/x/y")
	from, wrong := reference.ParseNormalizedNamed(m.Host + "/x/y")
	if err != nil || reference.Domain(named) != m.Registry {
		return Mirror{}, fmt.Errorf("%s: %.200q is not the name of a registry, such as docker.io", text, registry)
	}
	if wrong != nil || reference.Domain(from) != u.Host {
		return Mirror{}, fmt.Errorf("%s: %.200q is not the address of a registry for the container engine: write it "+
			"with a domain or a port, and a path in lower case", text, m.Host)
	}
	return m, nil
}

// fromMirror pulls the content of an image from the first mirror of its registry that has it, and returns the
// name that the engine has it under, "" if none does. The registry itself decides which content: fromMirror asks
// it for the digest, with the login of the job, and pulls this digest. So a mirror can neither move a tag nor
// change content, and it never sees the login. The caller pulls from the registry afterwards, which then transfers
// only the manifest and the configuration; a failure here costs time alone.
func (m *images) fromMirror(ctx context.Context, named reference.Named, login string, meter *pullShare) string {
	var mirrors []Mirror
	for _, one := range m.mirrors {
		if one.Registry == reference.Domain(named) {
			mirrors = append(mirrors, one)
		}
	}
	if len(mirrors) == 0 {
		return ""
	}
	var digest string
	if d, ok := named.(reference.Digested); ok {
		digest = d.Digest().String()
	} else {
		asking, cancel := context.WithTimeout(ctx, callTimeout)
		found, err := m.api.DistributionInspect(asking, reference.TagNameOnly(named).String(), login)
		cancel()
		if err != nil {
			return "" // the pull from the registry reports the error
		}
		digest = found.Descriptor.Digest.String()
	}
	for _, one := range mirrors {
		from := one.Host + "/" + reference.Path(named) + "@" + digest
		err := m.fetch(ctx, from, "", meter)
		if err == nil {
			m.log.InfoContext(ctx, "image content pulled from mirror", "image", named, "from", from)
			return from
		}
		if ctx.Err() != nil {
			return ""
		}
		m.log.WarnContext(ctx, "registry mirror failed, using the next source", "image", named, "mirror", one.Host,
			"err", err)
	}
	return ""
}

// forgetMirrored removes the name that an image got from a mirror. The content stays if the registry's name needs it.
func (m *images) forgetMirrored(ctx context.Context, from string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
	defer cancel()
	_, err := m.api.ImageRemove(ctx, from, image.RemoveOptions{PruneChildren: true})
	if err != nil && !cerrdefs.IsNotFound(err) {
		m.log.WarnContext(ctx, "name of an image at a mirror not removed", "image", from, "err", err)
	}
}
