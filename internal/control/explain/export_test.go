package explain

// PlanRest is the greatest age of a reading that a plan rests on.
const PlanRest = planRest
