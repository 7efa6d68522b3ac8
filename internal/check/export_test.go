package check

// Never lists the budgets that must not be charged, by reason.
var Never = never
