package main

import (
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/penstock-data/penstock/trainer/store"
)

// secretVars have values that are for this process alone.
var secretVars = []string{envToken, envStoreUser, envStorePassword, store.EnvKey}

// tokenText is what tokens begin with.
var tokenText = regexp.MustCompile(`\bpenstock(-join)?\.[a-z0-9]{1,32}\.[A-Za-z0-9_-]{43}`)

// secretAt is where the secret begins in an argument, or in a variable with its name; -1: there is
// none.
func secretAt(word string) int {
	if name, _, ok := strings.Cut(word, "="); ok && slices.Contains(secretVars, name) {
		return len(name) + 1
	}
	if at := tokenText.FindStringIndex(word); at != nil {
		return at[0]
	}
	return -1
}

// keepFromJobs is keepToItself of a process that starts jobs: they get none of its secrets, and of
// its open files what they are given.
func keepFromJobs(args bool) error {
	return errors.Join(keepToItself(args), forgetSecrets(), closeOnExec())
}

// forgetSecrets takes variables that hold secrets out of the environment: what this process starts
// does not have them. Who needs one has read it.
func forgetSecrets() error {
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); secretAt(kv) >= 0 {
			if err := os.Unsetenv(name); err != nil {
				return err
			}
		}
	}
	return nil
}
