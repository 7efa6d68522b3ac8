package spec

import "berth"

// isName reports whether s is a DNS label. Jobs, steps, outputs and pools are
// named in the form of tenants.
func isName(s string) bool {
	_, err := berth.ParseTenantID(s)
	return err == nil
}
