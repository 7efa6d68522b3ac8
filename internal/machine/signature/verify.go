package signature

import (
	"bytes"
	"context"
	"crypto"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/sigstore/sigstore/pkg/signature"

	"berth/activities/node"
	"berth/spec"
	"berth/wire"
)

// ErrUnsigned is wrapped by the error about an image without a demanded signature.
var ErrUnsigned = errors.New("image is not signed as demanded")

// Verifier verifies signatures that it fetches from registries. It may be used concurrently.
type Verifier struct {
	// CertFolder has a folder HOST or HOST:PORT for each registry with certificates of its own, in
	// files *.crt, as the Docker Engine reads them from /etc/docker/certs.d. "": none.
	CertFolder string
}

// candidate is a signature of an image, of which nothing has been verified.
type candidate struct {
	signed    []byte // the text that was signed
	signature []byte
	// means returns nil if the signed text is about this image.
	means func(name, digest string) error
}

// Verify returns nil if the image with this digest in the repository of ref has, for each demand, a
// signature by one of the demand's keys. The error wraps ErrUnsigned, node.ErrImageNotFound if the
// registry refuses the login, or node.ErrImageUnavailable if the registry does not answer.
func (v *Verifier) Verify(
	ctx context.Context, ref, digest string, login *node.RegistryAuth, demands []wire.SignatureDemand,
) (unsatisfied error) {
	if len(demands) == 0 {
		return nil
	}
	name, ok := spec.ImageName(ref)
	if !ok || digest == "" {
		return fmt.Errorf("%w: image %s came from no registry, so nobody can have signed it for one; %s",
			ErrUnsigned, ref, wants(demands[0]))
	}
	registry, err := v.open(name, login)
	if err != nil {
		return err
	}
	defer registry.close()
	options := append([]remote.Option{remote.WithContext(ctx)}, registry.options...)
	var found []candidate
	var failed error // the first form that cannot be read; the other one may satisfy
	for _, form := range []func(string, []remote.Option) ([]candidate, error){registry.simple, registry.bundles} {
		more, err := form(digest, options)
		if err != nil && failed == nil {
			failed = classify(name, err)
		}
		found = append(found, more...)
		if unsatisfied = allSatisfied(demands, found, name, digest); unsatisfied == nil {
			return nil
		}
	}
	if failed != nil {
		return failed
	}
	return unsatisfied
}

// allSatisfied returns an error about the first demand that no signature fulfils, or nil.
func allSatisfied(demands []wire.SignatureDemand, found []candidate, name, digest string) error {
	for _, d := range demands {
		if err := satisfied(d, found, name, digest); err != nil {
			return err
		}
	}
	return nil
}

// maxShown bounds the signatures of something else that an error describes.
const maxShown = 3

// satisfied returns nil if a signature fulfils the demand.
func satisfied(d wire.SignatureDemand, found []candidate, name, digest string) error {
	var other []string // valid signatures of something else
	for _, text := range d.Keys {
		key, err := spec.ParseSignatureKey(text)
		if err != nil {
			return fmt.Errorf("%w: a key that %s demands %w", ErrUnsigned, d.Whose, err)
		}
		verifier, err := signature.LoadVerifier(key.Public, crypto.SHA256)
		if err != nil {
			return fmt.Errorf("%w: key %s that %s demands: %w", ErrUnsigned, key.ID, d.Whose, err)
		}
		for _, c := range found {
			if verifier.VerifySignature(bytes.NewReader(c.signature), bytes.NewReader(c.signed)) != nil {
				continue
			}
			if err := c.means(name, digest); err != nil {
				if len(other) < maxShown {
					other = append(other, fmt.Sprintf("the signature by %s %v", key.ID, err))
				}
				continue
			}
			return nil
		}
	}
	why := "it has no signature"
	switch {
	case len(other) > 0:
		why = strings.Join(other, "; ")
	case len(found) == 1:
		why = "it has 1 signature, by no such key"
	case len(found) > 1:
		why = fmt.Sprintf("it has %d signatures, by no such key", len(found))
	}
	return fmt.Errorf("%w: image %s@%s: %s; %s", ErrUnsigned, name, digest, why, wants(d))
}

// wants names the author of a demand and the keys.
func wants(d wire.SignatureDemand) string {
	var ids []string
	for _, text := range d.Keys {
		key, err := spec.ParseSignatureKey(text)
		if err != nil {
			key.ID = "a key that " + err.Error()
		}
		ids = append(ids, key.ID)
	}
	one := "one of the keys "
	if len(ids) == 1 {
		one = "the key "
	}
	return d.Whose + " demands a signature by " + one + strings.Join(ids, ", ")
}

// classify reports whether a registry refused a request, or whether another try may help. The error's
// text has nothing of the registry's answer but its status: the answer may come from a host to
// which a hostile registry has redirected this machine.
func classify(name string, err error) error {
	kind, text := node.ErrImageUnavailable, err.Error()
	if answer, ok := errors.AsType[*transport.Error](err); ok {
		text = fmt.Sprintf("the registry answers with status %d", answer.StatusCode)
		if answer.StatusCode == http.StatusUnauthorized || answer.StatusCode == http.StatusForbidden {
			kind = node.ErrImageNotFound
		}
	}
	if call, ok := errors.AsType[*url.Error](err); ok {
		text = call.Err.Error() // the address of a redirect may hold a signature that gives access
	}
	return fmt.Errorf("read the signatures of image %s: %w: %s", name, kind, text)
}
