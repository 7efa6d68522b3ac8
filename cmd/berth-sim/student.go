package main

import "math"

// student returns the two-sided 95 % quantile of Student's t distribution for a number of degrees of freedom, from 1:
// |t| is at most this large with a probability of 0.95. 0 without a degree of freedom.
func student(freedom int) float64 {
	if freedom < 1 {
		return 0
	}
	low, high := 0.0, 1.0
	for within(high, freedom) < 0.95 {
		high *= 2
	}
	for range 60 { // halves the interval each time
		if middle := (low + high) / 2; within(middle, freedom) < 0.95 {
			low = middle
		} else {
			high = middle
		}
	}
	return high
}

// within returns the probability that |t| is at most x: the finite sums 26.7.3 and 26.7.4 of Abramowitz and Stegun,
// «Handbook of Mathematical Functions», for odd and even degrees of freedom.
func within(x float64, freedom int) float64 {
	angle := math.Atan(x / math.Sqrt(float64(freedom)))
	sin, cos := math.Sincos(angle)
	first := freedom % 2 // the exponent of the cosine in the first term
	term, sum := 1.0, 0.0
	if first == 1 {
		term = cos
	}
	for exponent := first; exponent <= freedom-2; exponent += 2 {
		sum += term
		term *= cos * cos * float64(exponent+1) / float64(exponent+2)
	}
	if first == 1 {
		return 2 / math.Pi * (angle + sin*sum)
	}
	return sin * sum
}
