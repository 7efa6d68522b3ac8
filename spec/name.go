package spec

import "berth"

// isName reports whether s is a DNS label: 1 to 63 of a-z, 0-9 and '-', not at either end.
// Names of jobs, steps, outputs, pools and tenants have this form.
func isName(s string) bool {
	_, err := berth.ParseTenantID(s)
	return err == nil
}
