package signature

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"berth/spec"
)

// The forms of signatures, as cosign defines them:
// https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md and
// https://github.com/sigstore/cosign/blob/main/specs/BUNDLE_SPEC.md.
const (
	annotation    = "dev.cosignproject.cosign/signature" // of a layer: the signature of the layer, in base64
	simpleType    = "cosign container image signature"
	bundleType    = "application/vnd.dev.sigstore.bundle" // a version follows
	statementType = "application/vnd.in-toto+json"
	predicateType = "https://sigstore.dev/cosign/sign/v1"
)

// simpleSignature returns the signature of a layer of a signature image. ok is false without a text, or if the
// annotation contains no signature.
func simpleSignature(payload []byte, text string) (c candidate, ok bool) {
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(raw) == 0 || len(payload) == 0 {
		return candidate{}, false
	}
	return candidate{payload, raw, func(name, digest string) error {
		var p struct {
			Critical struct {
				Identity struct {
					Reference string `json:"docker-reference"`
				} `json:"identity"`
				Image struct {
					Digest string `json:"docker-manifest-digest"`
				} `json:"image"`
				Type string `json:"type"`
			} `json:"critical"`
		}
		if err := json.Unmarshal(payload, &p); err != nil {
			return errors.New("signs something that is no signature of an image")
		}
		claimed, known := spec.ImageName(p.Critical.Identity.Reference)
		switch {
		case p.Critical.Type != simpleType:
			return fmt.Errorf("is of type %.60q", p.Critical.Type)
		case p.Critical.Image.Digest != digest:
			return fmt.Errorf("is of digest %.80q", p.Critical.Image.Digest)
		case !known || claimed != name:
			return fmt.Errorf("is for repository %.200q", p.Critical.Identity.Reference)
		}
		return nil
	}}, true
}

// bundleSignatures returns the signatures of a Sigstore bundle.
func bundleSignatures(text []byte) (found []candidate) {
	var b struct {
		Envelope struct {
			Payload    []byte `json:"payload"`
			Type       string `json:"payloadType"`
			Signatures []struct {
				Raw []byte `json:"sig"`
			} `json:"signatures"`
		} `json:"dsseEnvelope"`
	}
	if json.Unmarshal(text, &b) != nil || len(b.Envelope.Payload) == 0 {
		return nil
	}
	// The pre-authentication encoding of DSSE: the signature covers the payload's type as well.
	signed := fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(b.Envelope.Type), b.Envelope.Type,
		len(b.Envelope.Payload), b.Envelope.Payload)
	means := func(_, digest string) error { return stated(b.Envelope.Type, b.Envelope.Payload, digest) }
	for _, s := range b.Envelope.Signatures[:min(len(b.Envelope.Signatures), maxSignatures)] {
		found = append(found, candidate{signed, s.Raw, means})
	}
	return found
}

// stated returns nil if a statement says that the image with this digest is signed. Other statements,
// such as a list of an image's packages, may be signed by the same key. A statement names
// no repository: cosign leaves the name of the subject empty.
func stated(payloadType string, payload []byte, digest string) error {
	var s struct {
		Predicate string `json:"predicateType"`
		Subject   []struct {
			Digest map[string]string `json:"digest"`
		} `json:"subject"`
	}
	if payloadType != statementType || json.Unmarshal(payload, &s) != nil {
		return errors.New("signs something that is no statement about an image")
	}
	if s.Predicate != predicateType {
		return fmt.Errorf("is a statement of type %.100q", s.Predicate)
	}
	algorithm, hex, _ := strings.Cut(digest, ":")
	var named []string
	for _, subject := range s.Subject {
		if hex != "" && subject.Digest[algorithm] == hex {
			return nil
		}
		named = append(named, algorithm+":"+subject.Digest[algorithm])
	}
	return fmt.Errorf("is of digest %.200q", strings.Join(named, ", "))
}
