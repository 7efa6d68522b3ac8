package main

// pythonDraws are draws of random.Random(7).randrange(0, 3581).
var pythonDraws = []int{1326, 617, 1617, 2666, 197, 296, 3363, 2194, 385, 1497, 2387, 237}
