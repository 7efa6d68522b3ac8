package notice

import "time"

// NewPatientEC2 returns a source whose calls may take a minute.
func NewPatientEC2(base string) *EC2 { return newEC2(base, time.Minute) }

// NewPatientGCE returns a source whose calls may take a minute, and whose server holds a request for a minute.
func NewPatientGCE(base string) *GCE { return newGCE(base, time.Minute, time.Minute) }

// UsualLimit gives the calls the limit of the product.
func (e *EC2) UsualLimit() { e.http.Timeout = callLimit }

// UsualLimit gives the calls the limit of the product.
func (g *GCE) UsualLimit() { g.limit, g.hold = callLimit, holdFor }

// PatientLimit gives the calls the limit of NewPatientGCE.
func (g *GCE) PatientLimit() { g.limit, g.hold = time.Minute, time.Minute }
