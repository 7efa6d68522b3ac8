package admission

import (
	"strings"
	"testing"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/spec"
)

func TestNoTenantAllowsAnImageThatOneAboveRefuses(t *testing.T) {
	t.Parallel()
	d := dbtest.DB(t, db.Options{})
	for _, n := range []spec.NewTenant{{ID: "lab"}, {ID: "team", Parent: "lab"}, {ID: "open"}} {
		if err := d.Tenants.Create(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	for tenant, list := range map[berth.TenantID][]string{
		"lab": {"docker.io/library", "ghcr.io/acme"}, "team": {"docker.io", "quay.io"},
	} {
		if err := d.Tenants.SetQuota(t.Context(), spec.Quota{Tenant: tenant, Images: list}); err != nil {
			t.Fatal(err)
		}
	}
	images, err := ParseImages("docker.io, quay.io,ghcr.io")
	if err != nil {
		t.Fatal(err)
	}
	c := New(d, owned(t), Rules{Images: images})
	for _, x := range []struct {
		tenant berth.TenantID
		image  string
		says   string // "": allowed
	}{
		{"open", "acme/tool", ""},
		{"open", "example.com/tool", "example.com/tool is not among the images that the cluster allows (allowed: images of docker.io, quay.io, ghcr.io)"},
		{"nobody", "example.com/tool", "that the cluster allows"},
		{"lab", "busybox:1", ""},
		{"lab", "ghcr.io/acme/tool", ""},
		{"lab", "acme/tool", "docker.io/acme/tool is not among the images that tenant lab allows (allowed: images of docker.io/library, ghcr.io/acme)"},
		{"team", "busybox", ""},
		{"team", "ghcr.io/acme/tool", "that tenant team allows"},
		{"team", "quay.io/tool", "that tenant lab, above team, allows"},
		{"lab", "No Name", "which names no repository"},
	} {
		err := c.AllowImage(t.Context(), x.tenant, x.image)
		if x.says == "" && err != nil || x.says != "" && (!berth.IsSlug(err, berth.SlugInvalidSpec) || !strings.Contains(err.Error(), x.says)) {
			t.Errorf("%s runs %s: %v; want %q", x.tenant, x.image, err, x.says)
		}
	}
	free := New(d, owned(t), Rules{})
	if err := free.AllowImage(t.Context(), "open", "example.com/tool"); err != nil {
		t.Errorf("without any list: %v", err)
	}
}

func TestListsOfImagesNameTheirFaults(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "  "} {
		if list, err := ParseImages(text); list != nil || err != nil {
			t.Errorf("%q: %q, %v", text, list, err)
		}
	}
	if _, err := ParseImages("ghcr.io,busybox,"); err == nil || !strings.Contains(err.Error(), `entry[1]: "busybox" names no registry`) ||
		!strings.Contains(err.Error(), "entry[2]") {
		t.Errorf("%v", err)
	}
}
