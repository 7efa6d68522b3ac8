package berth_test

// measured are the limits of today, by the name of the measure. Counts are
// exact; shares have a hundredth of room, because the text around may shrink. A
// share of words that has reached its goal has the goal as its limit.
var measured = map[string]float64{
	"methods on one type":                                                             30,
	"exported names of the root package":                                              190,
	"lines of the longest function":                                                   80,
	"lines of a function, 99th percentile":                                            50,
	"lines of product code wider than 120 columns":                                    0,
	"percent of lines that are no comment, product code":                              85,
	"percent of doc comments that begin with what, who, whom, those, it, them, there": 13,
	"comments: what, whatever, whoever":                                               3,
	"documents: what, whatever, whoever":                                              3,
	"comments: tell, tells, told":                                                     3,
	"documents: tell, tells, told":                                                    3,
	"comments: those that, those of":                                                  1,
	"documents: those that, those of":                                                 1,
	"comments: anew":                                                                  1,
	"documents: anew":                                                                 1,
	"comments: any more":                                                              1,
	"documents: any more":                                                             0.3,
	"comments: for ever":                                                              1,
	"documents: for ever":                                                             1,
	"comments: beside":                                                                1,
	"documents: beside":                                                               1,
	"comments: nobody":                                                                1,
	"documents: nobody":                                                               1,
	"comments: whom":                                                                  1,
	"documents: whom":                                                                 0.3,
}

// leastExamples is the number of Example functions that must stay. go doc shows
// them with the declaration.
const leastExamples = 26
