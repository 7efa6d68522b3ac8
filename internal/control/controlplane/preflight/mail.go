package preflight

import "context"

// mail examines the mail server for notifications: whether it answers, and whether it accepts the user. It
// sends no mail.
func (r *report) mail(ctx context.Context) {
	m, err := r.Config.Mail.Open(r.Config.AllowPlaintext)
	if err != nil || m == nil {
		if err != nil && r.Config.Validate() == nil { // otherwise the settings report it
			r.add("mail", Fault, "", "%v", err)
		}
		return
	}
	call, cancel := context.WithTimeout(ctx, r.Limit)
	defer cancel()
	if err := m.Probe(call); err != nil {
		r.add("mail", Fault, "compare smtp and smtp-password-file; channels of kind email fail until it answers",
			"the mail server %s: %v", r.Config.Mail.Server, err)
		return
	}
	r.add("mail", OK, "", "the mail server %s answers", r.Config.Mail.Server)
}
