package store

// childEnv says what this program does as a child of its own test.
const childEnv = "PENSTOCK_STORE_CHILD"

func child() {}
