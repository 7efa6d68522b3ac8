package berth_test

// measured are the limits of today, by the name of the measure. Counts are
// exact; shares have a hundredth of room, because the text around may shrink.
var measured = map[string]float64{
	"methods on one type":                                                             203,
	"exported names of the root package":                                              570,
	"lines of the longest function":                                                   132,
	"lines of a function, 99th percentile":                                            50,
	"lines of product code wider than 120 columns":                                    1432,
	"percent of lines that are no comment, product code":                              87,
	"percent of doc comments that begin with what, who, whom, those, it, them, there": 39,
	"comments: what, whatever, whoever":                                               134,
	"documents: what, whatever, whoever":                                              48.8,
	"comments: tell, tells, told":                                                     36.6,
	"documents: tell, tells, told":                                                    10,
	"comments: those that, those of":                                                  12.5,
	"documents: those that, those of":                                                 2.7,
	"comments: anew":                                                                  3.4,
	"documents: anew":                                                                 4,
	"comments: any more":                                                              5.3,
	"documents: any more":                                                             0.3,
	"comments: for ever":                                                              2.6,
	"documents: for ever":                                                             1.3,
	"comments: beside":                                                                5.2,
	"documents: beside":                                                               3.6,
	"comments: nobody":                                                                11.4,
	"documents: nobody":                                                               3.8,
	"comments: whom":                                                                  1.3,
	"documents: whom":                                                                 0.3,
}

// leastExamples is the number of Example functions that must stay. go doc shows
// them with the declaration.
const leastExamples = 26
