package explain

// PlanRest is the greatest age of a reading that a plan rests on.
const PlanRest = planRest

// Renews reports whether a reading that no question waits for is under way.
func (x *Explainer) Renews() bool { return x.renews.Load() }
