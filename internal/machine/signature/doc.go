// Package signature verifies signatures of container images, in the forms of Sigstore's cosign.
//
// An image is signed if its own registry serves a signature of the image's digest by a demanded key.
// Two forms are read: cosign's signature images (tag sha256-HEX.sig), and Sigstore bundles that refer
// to the image's manifest (referrers of OCI 1.1). Signatures by certificates are no signatures here:
// the package asks no transparency log and no certificate authority.
//
// The one rule to know: the caller passes the digest that it will start, and starts nothing else.
package signature
