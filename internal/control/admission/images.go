package admission

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/goccy/go-yaml"

	"berth"
	"berth/spec"
	"berth/wire"
)

// ParseImages reads a list of registries and repositories that images may come from, separated by
// commas. The empty text stands for no list, which allows all images. An empty entry is a fault, so
// that a comma too many does not allow more.
func ParseImages(text string) ([]string, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	var list []string
	for entry := range strings.SplitSeq(text, ",") {
		list = append(list, strings.TrimSpace(entry))
	}
	var faults []error
	for _, f := range spec.CheckImageEntries("entry", list) {
		faults = append(faults, fmt.Errorf("%s: %s: write %s", f.Field, f.Detail, f.Allowed))
	}
	return list, errors.Join(faults...)
}

// ReadSignatureRules reads a YAML file with a list of rules about signatures of images. The path ""
// stands for no rules. An unknown key and a file without rules are errors, since both would leave
// images unchecked.
func ReadSignatureRules(path string) ([]spec.SignatureRule, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var rules []spec.SignatureRule
	if err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(&rules); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(rules) == 0 {
		return nil, fmt.Errorf("%s has no rules; write a list of rules, each with keys and repositories", path)
	}
	var faults []error
	for _, f := range spec.CheckSignatureRules("rule", rules) {
		faults = append(faults, fmt.Errorf("%s: %s: %s: allowed: %s", path, f.Field, f.Detail, f.Allowed))
	}
	return rules, errors.Join(faults...)
}

// Signatures returns the signatures that an image must have at present, to run for a tenant: the ones
// that the cluster, the tenant and each tenant above demand for its repository.
func (c *Controller) Signatures(
	ctx context.Context, tenant berth.TenantID, image string,
) ([]wire.SignatureDemand, error) {
	rows, err := c.quotas.with(ctx, tenant)
	if err != nil {
		return nil, err
	}
	// A text that names no image matches all rules: it cannot pass without a signature.
	name, ok := spec.ImageName(image)
	var demands []wire.SignatureDemand
	add := func(whose string, rules []spec.SignatureRule) {
		for _, r := range rules {
			if !ok || r.Covers(name) {
				demands = append(demands, wire.SignatureDemand{Whose: whose, Keys: r.Keys})
			}
		}
	}
	add("the cluster", c.rules.Signed)
	for at, here := rows[tenant]; here; at, here = rows[at.Parent] {
		add(fmt.Sprintf("tenant %s", at.ID), at.Quota.ImageSignatures)
	}
	return demands, nil
}

// AllowImage refuses, with slug invalid_spec, an image that the cluster, the tenant or a tenant above
// does not allow at present. A refusal fails a job for good, so AllowImage reads the rows again before
// it refuses: another replica may just have extended a list.
func (c *Controller) AllowImage(ctx context.Context, tenant berth.TenantID, image string) error {
	fault, err := c.imageFault(ctx, tenant, image)
	if err == nil && fault != nil {
		c.quotas.forget()
		fault, err = c.imageFault(ctx, tenant, image)
	}
	if err != nil || fault == nil {
		return err
	}
	return forbids([]berth.FieldError{*fault})
}

// imageFault returns the fault of an image, or nil. Every list must cover the image: the list of the
// cluster, of the tenant, and of each tenant above it.
func (c *Controller) imageFault(
	ctx context.Context, tenant berth.TenantID, image string,
) (*berth.FieldError, error) {
	rows, err := c.quotas.with(ctx, tenant)
	if err != nil {
		return nil, err
	}
	name, ok := spec.ImageName(image)
	judge := func(whose string, list []string) *berth.FieldError {
		switch {
		case list == nil || ok && spec.ImageAllowed(list, name):
			return nil
		case !ok:
			name = fmt.Sprintf("%.200q, which names no repository,", image)
		}
		return &berth.FieldError{
			Field: "image", Detail: fmt.Sprintf("%s is not among the images that %s allows", name, whose),
			Allowed: "images of " + strings.Join(list, ", "),
		}
	}
	if f := judge("the cluster", c.rules.Images); f != nil {
		return f, nil
	}
	for at, here := rows[tenant]; here; at, here = rows[at.Parent] {
		whose := fmt.Sprintf("tenant %s", at.ID)
		if at.ID != tenant {
			whose += ", above " + string(tenant) + ","
		}
		if f := judge(whose, at.Quota.Images); f != nil {
			return f, nil
		}
	}
	return nil, nil
}
