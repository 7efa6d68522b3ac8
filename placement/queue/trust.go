package queue

import "berth"

// Untrusted returns the tenants that are untrusted, or below a tenant that is; nil: none.
func (q *Queue) Untrusted() map[berth.TenantID]bool {
	var set map[berth.TenantID]bool
	for id, t := range q.Tenants {
		// The database prevents cycles of tenants, but rows from two reads may form one.
		for range len(q.Tenants) {
			if t.Untrusted {
				if set == nil {
					set = map[berth.TenantID]bool{}
				}
				set[id] = true
				break
			}
			above, ok := q.Tenants[t.Parent]
			if !ok {
				break
			}
			t = above
		}
	}
	return set
}
