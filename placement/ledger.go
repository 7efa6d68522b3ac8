package placement

import "berth"

// UpsertTenant brings in a tenant or its present row. Jobs of tenants that were
// never brought in share one account without limits.
func (s *Snapshot) UpsertTenant(t Tenant) { s.tenants[t.ID] = t }

// RemoveTenant takes a tenant out. An unknown one is no error.
func (s *Snapshot) RemoveTenant(id berth.TenantID) { delete(s.tenants, id) }

// Tenant returns a tenant by id.
func (s *Snapshot) Tenant(id berth.TenantID) (Tenant, bool) {
	t, ok := s.tenants[id]
	return t, ok
}

// UpsertRunning brings in a job that holds room, or how it holds it at present.
// The machines' rows must say the same of what is in use.
func (s *Snapshot) UpsertRunning(r Running) {
	s.running[r.Job] = r
}

// RemoveRunning takes out a job that holds room no more. An unknown one is no
// error.
func (s *Snapshot) RemoveRunning(id berth.JobID) { delete(s.running, id) }

// Running returns a job that holds room, by id.
func (s *Snapshot) Running(id berth.JobID) (Running, bool) {
	r, ok := s.running[id]
	return r, ok
}

// SetEarmarks replaces all earmarks.
func (s *Snapshot) SetEarmarks(list []Earmark) { s.earmarks = list }
